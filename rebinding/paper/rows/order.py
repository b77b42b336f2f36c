"""In which order the paper says things: sections, and in each the sentences as their rows are declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from rebinding.paper.claim import CONTROLLED, FIVE, Claim
from rebinding.paper.rows import attention, beyond, binding, circuit, robustness, roles, tracing

IN_ORDER: tuple[ModuleType, ...] = (tracing, circuit, attention, roles, binding, robustness, beyond)
"""Sections 3, 4.1 (with what its heads look at), 4.2 and 5, then what goes beyond the paper."""


@cache
def places() -> Mapping[str, int]:
    """The place of every declared sentence, by its id without procedure and number of boxes."""
    ids = [plain(claim.id) for module in IN_ORDER for value in vars(module).values() for claim in _claims(value)]
    return {id: number for number, id in enumerate(dict.fromkeys(ids))}


def place(id: str) -> int:
    """The place of a row; both procedures share one, and a row that nobody has declared comes last."""
    return places().get(plain(id), len(places()))


def plain(id: str) -> str:
    """An id without the procedure and the number of boxes."""
    return id.removesuffix(CONTROLLED).replace(f".{FIVE}", ".")


def _claims(value: Any) -> Iterator[Claim]:
    """The rows in a name of a module: one, several, or a table of them."""
    if isinstance(value, Claim):
        yield value
    elif isinstance(value, (tuple, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _claims(one)
