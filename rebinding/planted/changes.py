"""Variants of a mechanism: changes of lines, of the declared circuit, or of the printed numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rebinding.paper.circuit import CircuitHead
from rebinding.planted.language import Line, Wiring
from rebinding.task.designs import DesignName

Change: TypeAlias = Callable[[Wiring], Wiring]
Heads: TypeAlias = tuple[CircuitHead, ...]
Declaration: TypeAlias = Callable[[Heads, tuple[tuple[int, int], ...]], Heads]
"""Maps the circuit of the lines, and the (layer, head) of every decoy, to the declared circuit."""
Numbers: TypeAlias = Mapping[str, float]


def unchanged(wiring: Wiring) -> Wiring:
    return wiring


@dataclass(frozen=True)
class PlantVariant:
    """A variant: its mechanisms, a description, and its changes."""

    mechanisms: tuple[str, ...]
    says: str
    change: Change = unchanged
    declares: Declaration | None = None
    prints: Callable[[Numbers], Numbers] | None = None
    means: DesignName = "counterbalanced"
    """The design whose means its paper used for ablated heads."""


def edited(wiring: Wiring, name: str, edit: Callable[[Line], list[Line]]) -> Wiring:
    """The wiring with one line replaced by others."""
    lines = [new for line in wiring.lines for new in (edit(line) if line.name == name else [line])]
    return replace(wiring, lines=tuple(lines))


def changed(wiring: Wiring, name: str, **fields: Any) -> Wiring:
    """The wiring with other values in some fields of one line."""
    return edited(wiring, name, lambda line: [replace(line, **fields)])


def also_writing(wiring: Wiring, name: str, more: str) -> Wiring:
    """The wiring with one line that writes something more."""
    return edited(wiring, name, lambda line: [replace(line, write=f"{line.write}; {more}")])


def without(wiring: Wiring, *names: str) -> Wiring:
    """The wiring with some lines left out."""
    return replace(wiring, lines=tuple(line for line in wiring.lines if line.name not in names))


def extended(wiring: Wiring, *lines: Line, **spaces: int) -> Wiring:
    """The wiring with further lines, and with further spaces (or other sizes of those it has)."""
    return replace(wiring, lines=(*wiring.lines, *lines), spaces=wiring.spaces | spaces)


def undeclared(line: Line) -> Line:
    """A line as one outside the declared circuit."""
    return replace(line, group=None, role=None)
