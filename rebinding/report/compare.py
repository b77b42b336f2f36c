"""Compare two reports, and name what in a run differs from the procedure published with the paper.

**The published procedure**: only differences that may change a number are named.

**Two reports** differ in options, software, models, verdicts and estimates.

An estimate is the same if it changed by less than `SMALL_CHANGE` of its interval's half width; rounding on another
processor changes it by far less. Larger changes are given in half widths, because an interval says how far chance alone
may move an estimate. Evidence with the same key rests on the same tokens, circuit and settings, so there chance has no
part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rebinding.evidence import Kind
from rebinding.experiments.ablation import ABLATION
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.circuit.request import PRUNING
from rebinding.experiments.paths.request import PATHS
from rebinding.experiments.roles.request import ROLES
from rebinding.experiments.tracing.request import TRACING
from rebinding.paper.procedure import EARLY
from rebinding.report.folder import ReportedModel, ReportedRun
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.quantities import format_interval


@dataclass(frozen=True)
class ProcedureDifference:
    """One difference. `applies` says whether it concerns a model of this run."""

    this_run: str
    published: str
    applies: Callable[[ReportedRun, ReportedModel], bool]


def has_evidence(*kinds: Kind) -> Callable[[ReportedRun, ReportedModel], bool]:
    """A condition: the model has evidence of one of these kinds."""
    return lambda run, model: any(model.find_evidence(kind) for kind in kinds)


def _is_planted(run: ReportedRun, model: ReportedModel) -> bool:
    return model.about.get("kind") == "planted"


def _uses_balanced_means(run: ReportedRun, model: ReportedModel) -> bool:
    ablated = has_evidence(ABLATION, PRUNING)
    return ablated(run, model) and model.about.get("mean_set") == "counterbalanced"


DIFFERENCES: tuple[ProcedureDifference, ...] = (
    ProcedureDifference(
        "Prompt ids are disjoint: discovery from 0, means from 100, pruning from 200, evaluation from 300, directions"
        " from 10,000 on. Published rows of section 5 begin at 0, as published.",
        "Head roles and binding are measured on ids that means, pruning and directions have used; so are our published"
        " rows of head roles.",
        lambda run, model: True,
    ),
    ProcedureDifference(
        "The number of prompts is the one that decides each row on a planted model, or that of --samples.",
        "100 or 300 prompts, by experiment.",
        lambda run, model: _is_planted(run, model) or run.settings.get("samples") is not None,
    ),
    ProcedureDifference(
        "Prompts come from another design than the published one (see the settings).",
        "The box of the question stands first. Its partner stands second, and the swap names it first.",
        lambda run, model: run.settings.get("design", "published") != "published",
    ),
    ProcedureDifference(
        "The circuit under test is not the printed one: a planted model declares it, this run discovers it, or a file"
        " has it.",
        "The heads of the paper's table.",
        lambda run, model: model.about.get("circuit_from") not in (None, "published"),
    ),
    ProcedureDifference(
        "The hits of the unpatched counterfactual are subtracted, and controlled rows divide the difference by the"
        " share that they leave; tokens without a role are not traced; what the context adds is measured by patching it"
        " together with the swap.",
        "A raw share, without base, over every token, one token at a time.",
        has_evidence(TRACING),
    ),
    ProcedureDifference(
        "In path patching all other heads are frozen, keys and values are those of one query head, the noise is an"
        " independent story, the partner is named second, and D acts on C's keys and values.",
        "Whole KV groups are patched; whether anything is frozen is not known (rows on discovery run both), and D is"
        " said to act on C's query, which cannot work when heads are frozen.",
        has_evidence(PATHS),
    ),
    ProcedureDifference(
        "Heads outside the circuit are held at means over counterbalanced prompts, which cannot carry a slot.",
        "Means over prompts that all have the answer in the same slot.",
        _uses_balanced_means,
    ),
    ProcedureDifference(
        "Random circuits and the circuit are evaluated on the same held-out ids.",
        "Random circuits are evaluated on the ids of the selection.",
        has_evidence(ABLATION),
    ),
    ProcedureDifference(
        "Pruning walks the circuit in eight orders, each on prompts of its own, and the spread is reported.",
        "One walk, front to back.",
        has_evidence(PRUNING),
    ),
    ProcedureDifference(
        "Controlled rows of head roles: every group, A included, gets attention patterns at its own token, the order of"
        " two statements is all that changes, and both directions of an id are one unit.",
        "A gets head outputs instead; objects and the wording of the swap change too, and the answer's slot goes one"
        " way. (The published rows do this.)",
        lambda run, model: bool(model.find_evidence(ROLES, direction="both")),
    ),
    ProcedureDifference(
        "Controlled rows of section 5 run every ordered pair of slots on single heads, read all conditions on box and"
        " object tokens, and cross prompts with ten sets of directions from other words.",
        "One ordered pair, keys of whole KV groups, one set of directions; each condition is read on the tokens that it"
        " shifts, so its rows do not compare.",
        lambda run, model: bool(model.find_evidence(BINDING, variation="controlled")),
    ),
    ProcedureDifference(
        "Published rows of sections 4.2 and 5 edit and read at the ':' that the answer follows, and again two tokens"
        " before it; they are never counted as not replicated.",
        "One of the two. Which one is unknown: the released code counts the tokens that are not padding, and misses two"
        " if padding is Llama's end-of-turn token.",
        lambda run, model: bool(model.find_evidence(ROLES, cut=EARLY) or model.find_evidence(BINDING, cut=EARLY)),
    ),
    ProcedureDifference(
        "The printed random row is compared with three controls, and is never counted as not replicated.",
        "One row Random. The paper does not say which of three controls it is.",
        lambda run, model: bool(model.find_evidence(BINDING, variation="published")),
    ),
)


def find_differences(run: ReportedRun) -> Sequence[tuple[ProcedureDifference, Mapping[str, bool]]]:
    """The differences that concern a model of the run, each with the models that it concerns."""
    pairs = [
        (difference, {model.name: difference.applies(run, model) for model in run.models}) for difference in DIFFERENCES
    ]
    return [(difference, models) for difference, models in pairs if any(models.values())]


SMALL_CHANGE = 1e-3
MAX_ESTIMATES = 20
"""Up to this many estimates are listed; the rest are counted."""
MODEL_FIELDS = ("fingerprint", "revision", "weights", "dtype", "device", "form", "circuit_from", "circuit", "mean_set")
MAX_CHARACTERS = 40
"""Longest value that is shown in full."""


@dataclass(frozen=True)
class ReportPair:
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
class ReportComparison:
    """Two reports, the earlier one first."""

    first: ReportedRun
    second: ReportedRun

    @cached_property
    def pairs(self) -> list[ReportPair]:
        """The rows that both reports have."""
        before = {(row.id, row.model): row for row in self.first.claims}
        return [
            ReportPair(before[row.id, row.model], row) for row in self.second.claims if (row.id, row.model) in before
        ]

    @cached_property
    def verdicts(self) -> list[ReportPair]:
        """Rows with another verdict, gate or finding."""
        return [pair for pair in self.pairs if not pair.has_same_verdict]

    @cached_property
    def estimates(self) -> list[ReportPair]:
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

        def rows(pairs: list[ReportPair]) -> list[dict[str, Any]]:
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


def _verdict_line(pair: ReportPair) -> str:
    note = "" if pair.has_same_requests else "; it rests on other requests"
    return f"{pair.name}: {_verdict(pair.before)} -> {_verdict(pair.after)}; {_estimate(pair)}{note}"


def _estimate(pair: ReportPair) -> str:
    before, after = (_number(row) for row in (pair.before, pair.after))
    change = "" if pair.relative_change in (0.0, float("inf")) else f", {pair.relative_change:.2g} half widths"
    parts = [f" (by {part})" if pair.has_other_part else "" for part in pair.parts]
    return f"{before}{parts[0]} -> {after}{parts[1]}{change}"


def _number(row: Judgement) -> str:
    if row.measured is None:
        return "no estimate"
    return f"{row.measured:.4g} {format_interval(row.low, row.high)}".rstrip() + f" n={row.n}"


def _model_fields(model: ReportedModel) -> Mapping[str, Any]:
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
