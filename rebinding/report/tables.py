"""The tables of a model: the paper's with measured values above printed ones, first prompts, and provenance.

**Provenance**: every piece of evidence with its prompts, settings and duration.

**First prompts** of experiments as text: the original, and its counterfactual.

**The paper's tables**: a row of measured values, and below it the printed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments import random_draws as seeds
from rebinding.experiments.ablation import ABLATION
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.binding.summary import by_unit, per_example
from rebinding.experiments.circuit.request import PRUNING
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.paper.numbers import ALIASES, checkpoint, circuit
from rebinding.report.figures.figure import Interval, interval_of
from rebinding.report.folder import ReportedModel, ReportedRun, paper_text, printed_text
from rebinding.verdicts.quantities import format_interval, format_number

SEEDS: Mapping[str, str] = {
    "random circuits": str(seeds.RANDOM_CIRCUITS),
    "order of the pruning walks": str(seeds.WALKS),
    "published random directions": ", ".join(f"{name} {seed}" for name, seed in seeds.PUBLISHED_NOISE.items()),
    "matched random directions, and control heads": str(seeds.MATCHED),
    "resampled selections of heads": str(seeds.RESAMPLED),
    "prompts": "the id of the prompt",
}
"""All seeds; each is fixed in the code."""


@dataclass(frozen=True)
class ProvenanceLine:
    """A piece of evidence: its file, its duration, and its prompts."""

    name: str
    file: str
    seconds: float
    rows: int
    prompts: int
    ids: str
    design: str
    settings: Mapping[str, object]


@dataclass(frozen=True)
class Listing:
    """All evidence of a model."""

    pieces: tuple[ProvenanceLine, ...]

    @property
    def seconds(self) -> float:
        return sum(piece.seconds for piece in self.pieces)


def list_evidence(model: ReportedModel) -> Listing:
    """Every piece of evidence of a model, by name."""
    return Listing(tuple(describe_evidence(model, name, evidence) for name, evidence in sorted(model.evidence.items())))


def describe_evidence(model: ReportedModel, name: str, evidence: Evidence) -> ProvenanceLine:
    """One piece. Its prompts are those that have rows, not those that were searched for them."""
    entry = model.about["evidence"][name]
    ids = sorted({int(id) for id in evidence.rows.get("prompt", ())})
    return ProvenanceLine(
        name,
        entry["file"],
        float(entry["seconds"]),
        len(evidence.rows),
        len(ids),
        f"{ids[0]} to {ids[-1]}" if ids else "",
        str(evidence.settings["facets"]["design"]),
        dict(sorted(evidence.settings["request"].items())),
    )


@dataclass(frozen=True)
class PromptPair:
    """The first prompts of some experiments. The two texts differ in every second piece."""

    model: ReportedModel
    id: int
    original: tuple[str, ...]
    counterfactual: tuple[str, ...] | None
    used_by: tuple[str, ...]
    """The kinds of evidence that begin with this pair."""


def pairs(model: ReportedModel, labels: Iterable[str]) -> tuple[PromptPair, ...]:
    """The first pairs of the evidence with these labels, each once; pairs with a counterfactual first."""
    entries = model.about.get("evidence", {})
    kinds_by_pair: dict[tuple[Any, ...], dict[str, None]] = {}
    for label in dict.fromkeys(labels):
        entry = entries.get(label, {"pair": None})
        if (pair := entry["pair"]) is not None:
            counterfactual = None if pair["counterfactual"] is None else tuple(pair["counterfactual"])
            key = (counterfactual is None, pair["id"], tuple(pair["original"]), counterfactual)
            kinds_by_pair.setdefault(key, {})[entry["kind"]] = None
    ordered = sorted(kinds_by_pair.items(), key=lambda item: item[0][0])
    return tuple(
        PromptPair(model, id, original, counterfactual, tuple(kinds))
        for (_, id, original, counterfactual), kinds in ordered
    )


MEASURES = {"dR": "ΔR", "dlogit": "Δlogit", "switch": "switch"}
CONDITIONS = {
    "random": "random", "q": "Q", "k_both": "K (box and object)", "k_box": "K (box)", "k_object": "K (object)",
    "qk": "Q and K",
}  # fmt: skip
RANDOM_CONDITION = "random_qk"
"""Our random control in the row that the paper calls random."""
GROUPS = "ABCDE"
VARIANTS = {"full": "full model", "circuit": "circuit alone", "random": "random circuits"}
SOURCES = (
    "Measured: with 90 % intervals. Printed: in the paper. Declared, with a planted model: what a paper about the"
    " mechanism pointer would have printed; a model of another mechanism is held against it and must differ."
)
MARGIN_NOTE = (
    f"Margin: logit of the answer less the largest logit of another object. Logit: that of the answer. {SOURCES}"
)
SHIFT_NOTE = (
    "ΔR: change of the log ratio of attention on slot j and slot i; Δlogit: the same of the logits of their objects;"
    f" switch: share of heads whose attention moves from slot i to slot j. {SOURCES}"
)


@dataclass(frozen=True)
class TableRow:
    """A line of a table. `model` is None for lines that quote the paper."""

    model: str | None
    names: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of the page: columns of names first, then of numbers. `note` explains the columns."""

    key: str
    section: str
    title: str
    note: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]


def tables(run: ReportedRun) -> list[Table]:
    """All tables. A table without measured values still quotes the paper."""
    return [accuracies(run), margins(run), shifts(run), correct_only(run), heads(run)]


def accuracies(run: ReportedRun) -> Table:
    """Accuracies of the full model, the circuit and random circuits, and the number of heads."""
    names = ("accuracy.full", "accuracy.circuit", "accuracy.random")

    def measured_cells(model: ReportedModel) -> tuple[str, ...]:
        circuit_heads = {tuple(head[1:]) for head in model.about.get("circuit", [])}
        total = int(model.about.get("layers", 0)) * int(model.about.get("heads", 0))
        return (*_ablation_cells(run, model, "hit"), f"{len(circuit_heads)} / {total}" if circuit_heads else "")

    def printed_cells(numbers: Mapping[str, str]) -> tuple[str, ...]:
        circuit_heads, total = numbers.get("heads.kept"), numbers.get("heads.total")
        share = f"{circuit_heads} / {total}" if circuit_heads and total else ""
        return (*(numbers.get(name, "") for name in names), share)

    columns = ("full model", "circuit alone", "random circuits", "heads in the circuit / all")
    rows = tuple(_rows(run, measured_cells, printed_cells, "accuracy.full"))
    return Table(
        "accuracy",
        "circuit",
        "Accuracy",
        f"Share of prompts whose answer has the largest logit of the objects. {SOURCES}",
        ("model", ""),
        columns,
        rows,
    )


def margins(run: ReportedRun) -> Table:
    """Margins and logits of the answer."""
    places = [(measure, variant) for measure in ("margin", "logit") for variant in ("full", "circuit", "random")]

    def measured_cells(model: ReportedModel) -> tuple[str, ...]:
        return (*_ablation_cells(run, model, "margin"), *_ablation_cells(run, model, "label_logit"))

    def printed_cells(numbers: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(numbers.get(f"{measure}.{variant}", "") for measure, variant in places)

    columns = tuple(f"{measure}, {VARIANTS[variant]}" for measure, variant in places)
    rows = tuple(_rows(run, measured_cells, printed_cells, "margin.full"))
    return Table("margins", "circuit", "Margins and logits of the answer", MARGIN_NOTE, ("model", ""), columns, rows)


def shifts(run: ReportedRun) -> Table:
    """The Q/K table: every condition and measure."""
    rows: list[TableRow] = []
    for model in run.models:
        evidence = model.find_largest_evidence(BINDING, variation="published", cut=None)
        examples = None if evidence is None else per_example(evidence)
        rows += _shift_rows(model.name, model.name, examples, printed_text(model.about), model.provenance)
    for alias in _other_aliases(run):
        rows += _shift_rows(None, checkpoint(alias).paper_name, None, paper_text(alias))
    return Table(
        "shifts",
        "binding",
        "Shifts of queries and keys",
        SHIFT_NOTE,
        ("model", "condition", ""),
        tuple(MEASURES.values()),
        tuple(rows),
    )


def _shift_rows(
    model: str | None, name: str, examples: pd.DataFrame | None, numbers: Mapping[str, str], source: str = "printed"
) -> Iterator[TableRow]:
    for condition, label in CONDITIONS.items():
        if examples is not None:
            rows = examples[examples["condition"] == (RANDOM_CONDITION if condition == "random" else condition)]
            cells = tuple(_shift(rows, measure) if len(rows) else "" for measure in MEASURES)
            yield TableRow(model, (name, label, "measured"), cells)
        values = tuple(numbers.get(f"binding.{condition}.{measure}", "") for measure in MEASURES)
        if any(values) and (examples is not None or source == "printed"):
            yield TableRow(model, (name, label, source), values)


def correct_only(run: ReportedRun) -> Table:
    """The Q/K shifts on the prompts that the model answers correctly."""
    rows: list[TableRow] = []
    columns = [(condition, measure) for condition in ("q", "k_both", "qk") for measure in ("dR", "dlogit")]
    for model in run.models:
        evidence = model.find_largest_evidence(BINDING, variation="published", cut=None)
        if evidence is None:
            continue
        examples = per_example(evidence)
        for label, table in (("all", examples), ("answered correctly", examples[examples["correct"]])):
            cells = [
                _shift(part, measure) if len(part := table[table["condition"] == condition]) else ""
                for condition, measure in columns
            ]
            rows.append(TableRow(model.name, (model.name, f"measured, {label}"), tuple(cells)))
    paper = paper_text("llama3.2-3b")
    for label, prefix in (("all", "binding"), ("answered correctly", "correct_only")):
        cells = [paper.get(f"{prefix}.{condition}.{measure}", "") for condition, measure in columns]
        rows.append(TableRow(None, (checkpoint("llama3.2-3b").paper_name, f"printed, {label}"), tuple(cells)))
    titles = tuple(f"{CONDITIONS[condition]} {MEASURES[measure]}" for condition, measure in columns)
    return Table(
        "correct", "binding", "Shifts on correctly answered prompts", SHIFT_NOTE, ("model", ""), titles, tuple(rows)
    )


def heads(run: ReportedRun) -> Table:
    """Heads by group, as (layer.head): those judged, those that discovery finds, and the paper's own of every model."""
    rows = []
    for model in run.models:
        evidence = model.find_largest_evidence(PRUNING)
        for label, circuit_heads in (
            ("circuit under test", model.about.get("circuit", [])),
            ("discovered in this run", model.discovered_circuit()),
        ):
            if circuit_heads or evidence is not None:
                rows.append(TableRow(model.name, (model.name, label), _by_group(circuit_heads)))
    rows += [TableRow(None, (checkpoint(alias).paper_name, "printed"), _by_group(circuit(alias))) for alias in ALIASES]
    columns = tuple(f"group {group}" for group in GROUPS)
    return Table(
        "heads",
        "circuit",
        "Heads by group",
        "A head is layer.head. Printed: in the paper.",
        ("model", ""),
        columns,
        tuple(rows),
    )


def _by_group(circuit_heads: Iterable[tuple[str, int, int, str]]) -> tuple[str, ...]:
    heads = sorted(circuit_heads)
    names = ([f"{layer}.{head}" for name, layer, head, _ in heads if name == group] for group in GROUPS)
    return tuple(", ".join(group_names) or "none" for group_names in names)


def _rows(
    run: ReportedRun,
    measured_cells: Callable[[ReportedModel], tuple[str, ...]],
    printed_cells: Callable[[Mapping[str, str]], tuple[str, ...]],
    required_number: str,
) -> Iterator[TableRow]:
    """The measured and the printed line of every model, then the paper's other models."""
    for model in run.models:
        cells, numbers = measured_cells(model), printed_text(model.about)
        if any(cells):
            yield TableRow(model.name, (model.name, "measured"), cells)
        if required_number in numbers and (any(cells) or model.provenance == "printed"):
            yield TableRow(model.name, (model.name, model.provenance), printed_cells(numbers))
    for alias in _other_aliases(run):
        yield TableRow(None, (checkpoint(alias).paper_name, "printed"), printed_cells(paper_text(alias)))


def _other_aliases(run: ReportedRun) -> Sequence[str]:
    aliases = {model.about.get("alias") for model in run.models}
    return [alias for alias in ALIASES if alias not in aliases]


def _ablation_cells(run: ReportedRun, model: ReportedModel, measure: str) -> tuple[str, ...]:
    """Full model, circuit and random circuits, on the evidence of the claim about the circuit's accuracy."""
    rows = (row for row in run.summary.find_model(model.name).rows if row.id == "circuit.recovers_accuracy")
    labels = {label for row in rows for label in row.evidence}
    pieces = [piece for label, piece in model.find_evidence(ABLATION, comparison="groups").items() if label in labels]
    if not pieces:
        return "", "", ""
    evidence = pieces[0]
    values = (of_circuit(evidence, "full", measure), of_circuit(evidence, "circuit", measure))
    samples = (*values, of_random(evidence, measure))
    return tuple(_interval(interval_of(sample, share=measure == "hit")) for sample in samples)


def _shift(rows: pd.DataFrame, measure: str) -> str:
    return _interval(interval_of(by_unit(rows, measure), share=measure == "switch"))


def _interval(estimate: Interval) -> str:
    return f"{format_number(estimate.mean)} {format_interval(estimate.low, estimate.high)}"
