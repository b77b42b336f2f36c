"""Compare two reports: options, software, models, verdicts and estimates.

An estimate is the same if it changed by less than `SMALL_CHANGE` of its interval's half width; rounding on another
processor changes it by far less. Larger changes are given in half widths, because an interval says how far chance alone
may move an estimate. Evidence with the same key rests on the same tokens, circuit and settings, so there chance has no
part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rebinding.report.folder import Model, Run
from rebinding.verdicts.judgement import Judgement

SMALL_CHANGE = 1e-3
MAX_ESTIMATES = 20
"""Up to this many estimates are listed; the rest are counted."""
MODEL_FIELDS = ("fingerprint", "revision", "weights", "dtype", "device", "form", "circuit_from", "circuit", "mean_set")
MAX_CHARACTERS = 40
"""Longest value that is shown in full."""


@dataclass(frozen=True)
class Pair:
    """A row that both reports have."""

    before: Judgement
    after: Judgement

    @property
    def name(self) -> str:
        return f"{self.after.id}  {self.after.model}"

    @property
    def has_same_requests(self) -> bool:
        """Whether both rows rest on the same requests, tokens included."""
        return set(self.before.evidence) == set(self.after.evidence)

    @property
    def has_same_verdict(self) -> bool:
        """Whether the verdicts are the same, gate or finding included."""
        return _verdict(self.before) == _verdict(self.after)

    @property
    def parts(self) -> tuple[str, str]:
        """The part of the sentence that decided each row; empty where a report does not name one."""
        return ": ".join(self.before.part), ": ".join(self.after.part)

    @property
    def has_other_part(self) -> bool:
        """Whether different parts decided; False if an older report names none."""
        before, after = self.parts
        return bool(before and after) and before != after

    @property
    def relative_change(self) -> float:
        """The change of the estimate in half widths of the wider interval; 0 if neither row has an estimate.

        Infinite for estimates of two different parts of a sentence."""
        if self.has_other_part:
            return float("inf")
        if self.before.measured is None or self.after.measured is None:
            return 0.0 if self.before.measured == self.after.measured else float("inf")
        change = abs(self.after.measured - self.before.measured)
        half_width = max(_half_width(self.before), _half_width(self.after))
        return change / half_width if half_width else (0.0 if not change else float("inf"))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two reports, the earlier one first."""

    first: Run
    second: Run

    @cached_property
    def pairs(self) -> list[Pair]:
        """The rows that both reports have."""
        before = {(row.id, row.model): row for row in self.first.claims}
        return [Pair(before[row.id, row.model], row) for row in self.second.claims if (row.id, row.model) in before]

    @cached_property
    def verdicts(self) -> list[Pair]:
        """Rows with another verdict, gate or finding."""
        return [pair for pair in self.pairs if not pair.has_same_verdict]

    @cached_property
    def estimates(self) -> list[Pair]:
        """Rows with the same verdict and another estimate, the largest change first."""
        changes = [pair for pair in self.pairs if pair.has_same_verdict and pair.relative_change > SMALL_CHANGE]
        return sorted(changes, key=lambda pair: -pair.relative_change)

    def lines(self) -> Iterator[str]:
        """The comparison as text."""
        yield from _section("options", _differences(self.first.settings, self.second.settings))
        yield from _section("software", _differences(self.first.software, self.second.software))
        yield from _section("models", self._models())
        yield from _section("rows in one report only", self._unpaired_rows())
        yield from _section("verdicts", [_verdict_line(pair) for pair in self.verdicts])
        estimates = [f"{pair.name}: {_estimate(pair)}" for pair in self.estimates[:MAX_ESTIMATES]]
        rest = len(self.estimates) - len(estimates)
        yield from _section("estimates", [*estimates, f"and {rest} more"] if rest else estimates)
        same_requests = sum(pair.has_same_requests for pair in self.pairs)
        yield (
            f"{len(self.pairs)} rows in both: {len(self.verdicts)} with another verdict, {len(self.estimates)} with"
            f" another estimate; {same_requests} rest on the same requests, {len(self.pairs) - same_requests} on others"
        )

    def plain(self) -> dict[str, Any]:
        """The comparison for programs: what differs, and every row in both reports whose verdict or estimate does."""

        def side(row: Judgement) -> dict[str, Any]:
            fields = ("verdict", "gate", "finding", "measured", "low", "high", "n")
            return {name: getattr(row, name) for name in fields}

        def rows(pairs: list[Pair]) -> list[dict[str, Any]]:
            return [
                {"id": pair.after.id, "model": pair.after.model, "first": side(pair.before), "second": side(pair.after)}
                for pair in pairs
            ]

        return {
            "options": _differences(self.first.settings, self.second.settings),
            "software": _differences(self.first.software, self.second.software),
            "models": self._models(),
            "unpaired": self._unpaired_rows(),
            "rows_in_both": len(self.pairs),
            "verdicts": rows(self.verdicts),
            "estimates": rows(self.estimates),
        }

    def _models(self) -> list[str]:
        before, after = ({model.name: model for model in run.models} for run in (self.first, self.second))
        lines = [f"{name}: in the first report only" for name in before if name not in after]
        lines += [f"{name}: in the second report only" for name in after if name not in before]
        for name in before.keys() & after.keys():
            changes = _differences(_model_fields(before[name]), _model_fields(after[name]))
            lines += [f"{name}: {change}" for change in changes]
        return sorted(lines)

    def _unpaired_rows(self) -> list[str]:
        paired = {(pair.after.id, pair.after.model) for pair in self.pairs}
        return [
            f"{row.id}  {row.model}: {row.verdict} ({which})"
            for which, run in (("first", self.first), ("second", self.second))
            for row in run.claims
            if (row.id, row.model) not in paired
        ]


def _half_width(row: Judgement) -> float:
    return 0.0 if row.low is None or row.high is None else (row.high - row.low) / 2


def _verdict(row: Judgement) -> str:
    detail = row.gate or row.finding
    return f"{row.verdict} ({detail})" if detail else str(row.verdict)


def _verdict_line(pair: Pair) -> str:
    note = "" if pair.has_same_requests else "; it rests on other requests"
    return f"{pair.name}: {_verdict(pair.before)} -> {_verdict(pair.after)}; {_estimate(pair)}{note}"


def _estimate(pair: Pair) -> str:
    before, after = (_number(row) for row in (pair.before, pair.after))
    change = "" if pair.relative_change in (0.0, float("inf")) else f", {pair.relative_change:.2g} half widths"
    parts = [f" (by {part})" if pair.has_other_part else "" for part in pair.parts]
    return f"{before}{parts[0]} -> {after}{parts[1]}{change}"


def _number(row: Judgement) -> str:
    if row.measured is None:
        return "no estimate"
    interval = "" if row.low is None or row.high is None else f" [{row.low:.3g}, {row.high:.3g}]"
    return f"{row.measured:.4g}{interval} n={row.n}"


def _model_fields(model: Model) -> Mapping[str, Any]:
    return {name: model.about.get(name) for name in MODEL_FIELDS}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {_shorten(before.get(name))} -> {_shorten(after.get(name))}" for name in names]


def _shorten(value: Any) -> str:
    text = f"{len(value)} heads" if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."


def _section(name: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield name
        yield from (f"  {line}" for line in lines)
        yield ""
