"""What changed between two reports: what was asked, with what it was computed, and what came out.

An estimate is the same if it moved by less than `SAME` of its interval's half width: another processor rounds
otherwise, and that is far less. What moved by more is told in half widths, as an interval says how far chance alone may
move it; evidence whose key is the same rests on the same tokens, circuit and settings, so there chance has no part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rebinding.report.folder import Model, Run
from rebinding.verdicts.judgement import Judgement

SAME = 1e-3
SHOWN = 20
"""Estimates that are told one by one; the others are counted."""
OF_A_MODEL = ("fingerprint", "revision", "weights", "dtype", "device", "form", "circuit_from", "circuit", "mean_set")
KEY = 40
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Pair:
    """One row of both reports."""

    before: Judgement
    after: Judgement

    @property
    def name(self) -> str:
        return f"{self.after.id}  {self.after.model}"

    @property
    def asked_alike(self) -> bool:
        """Whether both rest on the same requests, tokens included."""
        return set(self.before.evidence) == set(self.after.evidence)

    @property
    def judged_alike(self) -> bool:
        """Whether the verdict is the same, and the reason where there is none."""
        return _verdict(self.before) == _verdict(self.after)

    @property
    def parts(self) -> tuple[str, str]:
        """Which part decided each, of a sentence that has several; empty where a report does not say."""
        return ": ".join(self.before.part), ": ".join(self.after.part)

    @property
    def is_other_part(self) -> bool:
        """Whether different parts decided; a report from before parts were written down leaves that open."""
        before, after = self.parts
        return bool(before and after) and before != after

    @property
    def moved(self) -> float:
        """How far the estimate moved, in half widths of the wider interval; 0 where there is none in either.

        Estimates of two parts of a sentence are of two things."""
        if self.is_other_part:
            return float("inf")
        if self.before.measured is None or self.after.measured is None:
            return 0.0 if self.before.measured == self.after.measured else float("inf")
        change = abs(self.after.measured - self.before.measured)
        half = max(_half(self.before), _half(self.after))
        return change / half if half else (0.0 if not change else float("inf"))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two reports, the earlier one first."""

    first: Run
    second: Run

    @cached_property
    def pairs(self) -> list[Pair]:
        """The rows that both have."""
        before = {(one.id, one.model): one for one in self.first.claims}
        return [Pair(before[one.id, one.model], one) for one in self.second.claims if (one.id, one.model) in before]

    @cached_property
    def verdicts(self) -> list[Pair]:
        """Rows with another verdict, or another reason for having none."""
        return [one for one in self.pairs if not one.judged_alike]

    @cached_property
    def estimates(self) -> list[Pair]:
        """Rows with the same verdict whose estimate moved, farthest first."""
        moved = [one for one in self.pairs if one.judged_alike and one.moved > SAME]
        return sorted(moved, key=lambda one: -one.moved)

    def lines(self) -> Iterator[str]:
        """The comparison for people."""
        yield from _section("options", _differing(self.first.settings, self.second.settings))
        yield from _section("software", _differing(self.first.software, self.second.software))
        yield from _section("models", self._models())
        yield from _section("rows in one report only", self._alone())
        yield from _section("verdicts", [_told(one) for one in self.verdicts])
        shown = [f"{one.name}: {_estimate(one)}" for one in self.estimates[:SHOWN]]
        rest = len(self.estimates) - len(shown)
        yield from _section("estimates", [*shown, f"and {rest} more"] if rest else shown)
        alike = sum(one.asked_alike for one in self.pairs)
        yield (
            f"{len(self.pairs)} rows in both: {len(self.verdicts)} with another verdict, {len(self.estimates)} with"
            f" another estimate; {alike} rest on the same requests, {len(self.pairs) - alike} on others"
        )

    def _models(self) -> list[str]:
        before, after = ({one.name: one for one in run.models} for run in (self.first, self.second))
        found = [f"{name}: in the first report only" for name in before if name not in after]
        found += [f"{name}: in the second report only" for name in after if name not in before]
        for name in before.keys() & after.keys():
            found += [f"{name}: {line}" for line in _differing(_of(before[name]), _of(after[name]))]
        return sorted(found)

    def _alone(self) -> list[str]:
        both = {(one.after.id, one.after.model) for one in self.pairs}
        return [
            f"{one.id}  {one.model}: {one.verdict} ({which})"
            for which, run in (("first", self.first), ("second", self.second))
            for one in run.claims
            if (one.id, one.model) not in both
        ]


def _half(one: Judgement) -> float:
    return 0.0 if one.low is None or one.high is None else (one.high - one.low) / 2


def _verdict(one: Judgement) -> str:
    why = one.gate or one.finding
    return f"{one.verdict} ({why})" if why else str(one.verdict)


def _told(one: Pair) -> str:
    why = "" if one.asked_alike else "; it rests on other requests"
    return f"{one.name}: {_verdict(one.before)} -> {_verdict(one.after)}; {_estimate(one)}{why}"


def _estimate(one: Pair) -> str:
    values = [_number(side) for side in (one.before, one.after)]
    far = "" if one.moved in (0.0, float("inf")) else f", {one.moved:.2g} half widths"
    parts = [f" (by {part})" if one.is_other_part else "" for part in one.parts]
    return f"{values[0]}{parts[0]} -> {values[1]}{parts[1]}{far}"


def _number(one: Judgement) -> str:
    if one.measured is None:
        return "no estimate"
    interval = "" if one.low is None or one.high is None else f" [{one.low:.3g}, {one.high:.3g}]"
    return f"{one.measured:.4g}{interval} n={one.n}"


def _of(model: Model) -> Mapping[str, Any]:
    return {name: model.about.get(name) for name in OF_A_MODEL}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {_short(before.get(name))} -> {_short(after.get(name))}" for name in names]


def _short(value: Any) -> str:
    text = f"{len(value)} heads" if isinstance(value, list) else str(value)
    return text if len(text) <= KEY else f"{text[: KEY - 3]}..."


def _section(name: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield name
        yield from (f"  {line}" for line in lines)
        yield ""
