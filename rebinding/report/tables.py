"""The paper's tables with ours: one row for what was measured here, and below it what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.binding.summary import per_example
from rebinding.experiments.circuit.request import ABLATION, PRUNING
from rebinding.experiments.circuit.summary import of_circuit, of_random
from rebinding.experiments.plots import Interval, interval_of, over_prompts
from rebinding.paper.numbers import ALIASES, checkpoint, circuit
from rebinding.report.drawn import number
from rebinding.report.folder import Model, Run
from rebinding.report.printed import quoted, written

MEASURES = {"dR": "ΔR", "dlogit": "Δlogit", "switch": "switch"}
CONDITIONS = {
    "random": "random", "q": "Q", "k_both": "K (box and object)", "k_box": "K (box)", "k_object": "K (object)",
    "qk": "Q and K",
}  # fmt: skip
RANDOM_HERE = "random_qk"
"""Which of our random controls stands in the row that the paper calls random."""
GROUPS = "ABCDE"


@dataclass(frozen=True)
class Row:
    """A line of a table. `model` is None for lines that quote the paper."""

    model: str | None
    names: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of the page: columns of names first, then of numbers."""

    key: str
    section: str
    title: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tables(run: Run) -> list[Table]:
    """All of them; a table that nothing was measured for still quotes the paper."""
    return [accuracies(run), margins(run), shifts(run), correct_only(run), heads(run)]


def accuracies(run: Run) -> Table:
    """Accuracies of the full model, the circuit and random circuits, and how many heads there are."""
    names = ("accuracy.full", "accuracy.circuit", "accuracy.random")

    def ours(model: Model) -> tuple[str, ...]:
        listed = model.about.get("circuit", [])
        total = int(model.about.get("layers", 0)) * int(model.about.get("heads", 0))
        return (*_ablated(run, model, "hit"), f"{len({tuple(one[1:]) for one in listed})} / {total}" if listed else "")

    def theirs(numbers: Mapping[str, str]) -> tuple[str, ...]:
        kept, total = numbers.get("heads.kept"), numbers.get("heads.total")
        return (*(numbers.get(one, "") for one in names), f"{kept} / {total}" if kept and total else "")

    columns = ("full model", "circuit", "random circuits", "heads kept / all")
    return Table(
        "accuracy", "circuit", "Accuracy", ("model", ""), columns, tuple(_rows(run, ours, theirs, "accuracy.full"))
    )


def margins(run: Run) -> Table:
    """Margins and logits of the answer."""
    names = tuple(f"{what}.{who}" for what in ("margin", "logit") for who in ("full", "circuit", "random"))

    def ours(model: Model) -> tuple[str, ...]:
        return (*_ablated(run, model, "margin"), *_ablated(run, model, "label_logit"))

    def theirs(numbers: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(numbers.get(one, "") for one in names)

    columns = tuple(f"{what}, {who}" for what in ("margin", "logit") for who in ("full", "circuit", "random"))
    rows = tuple(_rows(run, ours, theirs, "margin.full"))
    return Table("margins", "circuit", "Margins and logits of the answer", ("model", ""), columns, rows)


def shifts(run: Run) -> Table:
    """The Q/K table: every condition and measure."""
    rows: list[Row] = []
    for model in run.models:
        evidence = model.one(BINDING, variation="published", cut=None)
        examples = None if evidence is None else per_example(evidence)
        rows += _shift_rows(model.name, model.name, examples, written(model.about))
    for alias in _unjudged(run):
        rows += _shift_rows(None, checkpoint(alias).paper_name, None, quoted(alias))
    return Table(
        "shifts",
        "binding",
        "Shifts of queries and keys",
        ("model", "condition", ""),
        tuple(MEASURES.values()),
        tuple(rows),
    )


def _shift_rows(
    model: str | None, name: str, examples: pd.DataFrame | None, numbers: Mapping[str, str]
) -> Iterator[Row]:
    for condition, said in CONDITIONS.items():
        if examples is not None:
            here = examples[examples["condition"] == (RANDOM_HERE if condition == "random" else condition)]
            cells = tuple(_interval(over_prompts(here, measure)) if len(here) else "" for measure in MEASURES)
            yield Row(model, (name, said, "ours"), cells)
        values = tuple(numbers.get(f"binding.{condition}.{measure}", "") for measure in MEASURES)
        if any(values):
            yield Row(model, (name, said, "printed"), values)


def correct_only(run: Run) -> Table:
    """The Q/K shifts on the prompts that the model answers."""
    rows: list[Row] = []
    conditions = ("q", "k_both", "qk")
    for model in run.models:
        evidence = model.one(BINDING, variation="published", cut=None)
        if evidence is None:
            continue
        examples = per_example(evidence)
        for said, table in (("all", examples), ("answered correctly", examples[examples["correct"]])):
            cells = [
                _interval(over_prompts(here, measure)) if len(here := table[table["condition"] == condition]) else ""
                for condition in conditions
                for measure in ("dR", "dlogit")
            ]
            rows.append(Row(model.name, (model.name, f"ours, {said}"), tuple(cells)))
    paper = quoted("llama3.2-3b")
    for said, prefix in (("all", "binding"), ("answered correctly", "correct_only")):
        cells = [paper.get(f"{prefix}.{one}.{measure}", "") for one in conditions for measure in ("dR", "dlogit")]
        rows.append(Row(None, (checkpoint("llama3.2-3b").paper_name, f"printed, {said}"), tuple(cells)))
    columns = tuple(f"{CONDITIONS[one]} {MEASURES[what]}" for one in conditions for what in ("dR", "dlogit"))
    return Table("correct", "binding", "Correctly answered prompts only", ("model", ""), columns, tuple(rows))


def heads(run: Run) -> Table:
    """Heads by group, as (layer.head): those judged, those that discovery finds, and the paper's own of every model."""
    rows = []
    for model in run.models:
        evidence = model.one(PRUNING)
        for said, listed in (("judged", model.about.get("circuit", [])), ("discovered here", model.discovered())):
            if listed or evidence is not None:
                rows.append(Row(model.name, (model.name, said), _by_group(listed)))
    rows += [Row(None, (checkpoint(alias).paper_name, "printed"), _by_group(circuit(alias))) for alias in ALIASES]
    columns = tuple(f"group {group}" for group in GROUPS)
    return Table("heads", "circuit", "Heads by group (layer.head)", ("model", ""), columns, tuple(rows))


def _by_group(listed: Iterable[tuple[str, int, int, str]]) -> tuple[str, ...]:
    found = [", ".join(f"{layer}.{head}" for one, layer, head, _ in sorted(listed) if one == group) for group in GROUPS]
    return tuple(heads or "none" for heads in found)


def _rows(
    run: Run,
    ours: Callable[[Model], tuple[str, ...]],
    theirs: Callable[[Mapping[str, str]], tuple[str, ...]],
    needs: str,
) -> Iterator[Row]:
    """Ours and the printed line for every model, then the paper's other models."""
    for model in run.models:
        cells, numbers = ours(model), written(model.about)
        if any(cells):
            yield Row(model.name, (model.name, "ours"), cells)
        if needs in numbers:
            yield Row(model.name, (model.name, "printed"), theirs(numbers))
    for alias in _unjudged(run):
        yield Row(None, (checkpoint(alias).paper_name, "printed"), theirs(quoted(alias)))


def _unjudged(run: Run) -> Sequence[str]:
    judged = {model.about.get("alias") for model in run.models}
    return [alias for alias in ALIASES if alias not in judged]


def _ablated(run: Run, model: Model, measure: str) -> tuple[str, ...]:
    """Full model, circuit and random circuits, on the evidence of the claim about the circuit's accuracy."""
    used = {
        label
        for one in run.summary.of(model.name).rows
        if one.id == "circuit.recovers_accuracy"
        for label in one.evidence
    }
    found = [one for label, one in model.of(ABLATION, beside="groups").items() if label in used]
    if not found:
        return "", "", ""
    plain = (of_circuit(found[0], "full", measure), of_circuit(found[0], "circuit", measure))
    values = (*plain, of_random(found[0], measure).mean(axis=1))
    return tuple(_interval(interval_of(one)) for one in values)


def _interval(found: Interval) -> str:
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"
