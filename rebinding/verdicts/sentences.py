"""Sentences that say several things at once.

A part is a rule that still waits for its error level: a call of `rebinding.verdicts` without `level`. "All of these"
is REPLICATED if every part is, each at the full level (all would have to err at once), and NOT REPLICATED if one part
is at level / parts (one error is enough). "Any of these" is its mirror image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from rebinding.paper.claim import Rule
from rebinding.verdicts import Outcome, Verdict

LEVEL = 0.05


class Part(Protocol):
    """A rule with its data, such as `partial(effect, values, margin=0.2)`."""

    def __call__(self, *, level: float) -> Verdict: ...


def all_of(kind: Rule, parts: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence whose parts must all hold."""
    return _together(kind, parts, level, every="REPLICATED", one="NOT REPLICATED")


def any_of(kind: Rule, parts: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence of which one part must hold."""
    return _together(kind, parts, level, every="NOT REPLICATED", one="REPLICATED")


def _together(kind: Rule, parts: Mapping[str, Part], level: float, *, every: Outcome, one: Outcome) -> Verdict:
    if not parts:
        raise ValueError("a sentence without parts; give at least one rule")
    plain = {name: part(level=level) for name, part in parts.items()}
    strict = {name: part(level=level / len(parts)) for name, part in parts.items()}
    for name, verdict in plain.items():
        if not verdict.judged:
            return _named(kind, name, verdict)
    for name, verdict in strict.items():
        if verdict.outcome == one:
            return _named(kind, name, verdict)
    waiting = {name: verdict for name, verdict in plain.items() if verdict.outcome != every}
    name, verdict = next(iter((waiting or plain).items()))
    if waiting and verdict.outcome == one:  # sure alone, not sure as one of several
        return _named(kind, name, replace(strict[name], outcome="INCONCLUSIVE"))
    told = verdict if waiting else replace(verdict, p_value=_largest(plain))
    return _named(kind, name, told)


def _named(kind: Rule, name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, kind=kind, reason=f"{name}: {verdict.reason}")


def _largest(verdicts: Mapping[str, Verdict]) -> float | None:
    known = [verdict.p_value for verdict in verdicts.values() if verdict.p_value is not None]
    return max(known) if known else None
