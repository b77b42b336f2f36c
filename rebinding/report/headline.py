"""The headline claims on all models of a run: a sentence for each model, a grid, and the numbers and reasons.

NOT REPLICATED can be the correct verdict: the page says what is known of the mechanism of planted and learned models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from types import MappingProxyType

from rebinding.paper.headlines import HEADLINES, Headline
from rebinding.report.folder import ReportedModel, ReportedRun
from rebinding.report.summary import ModelSummary, Summary
from rebinding.verdicts.headline import ALONE, HeadlineVerdict, find_deciding_row, verdict_of_all
from rebinding.verdicts.judgement import Judgement, describe_means, describe_numbers
from rebinding.verdicts.outcome import Outcome

MAX_REASON = 160
"""Characters of a reason in the table; the row that the table links to has all of it."""


@dataclass(frozen=True)
class ProcedureVerdict:
    """The verdict on a headline claim under one procedure, the row that decides, and the reason in one line.

    `reason` is empty if the line above gives the same reason. `means` and `numbers` are the row's, short and in full.
    """

    procedure: str
    outcome: Outcome
    row: Judgement
    reason: str

    @property
    def means(self) -> str:
        return describe_means(self.row)

    @property
    def numbers(self) -> str:
        return describe_numbers(self.row)


@dataclass(frozen=True)
class HeadlineCell:
    """A headline claim on one model; without a verdict if none of its rows was judged there."""

    model: ModelSummary
    verdict: HeadlineVerdict | None
    procedures: tuple[ProcedureVerdict, ...]


@dataclass(frozen=True)
class HeadlineRow:
    """A headline claim on each model."""

    headline: Headline
    cells: tuple[HeadlineCell, ...]


@dataclass(frozen=True)
class Answer:
    """What came out on one model, in a sentence for each way in which claims stand, and how this was expected."""

    model: ModelSummary
    sentences: tuple[str, ...]
    expectation: str


@dataclass(frozen=True)
class HeadlineTable:
    """The models with a judged headline claim, a row for each such claim, and the answer on each model."""

    models: tuple[ModelSummary, ...]
    rows: tuple[HeadlineRow, ...]
    answers: tuple[Answer, ...]

    @property
    def excludes(self) -> bool:
        """Whether claims 3 and 4 are both there, of which a model can show one at most."""
        return {3, 4} <= {row.headline.number for row in self.rows}


def headline_table(summary: Summary) -> HeadlineTable:
    """The table of a run; it has no rows if no headline claim was judged."""
    models = tuple(model for model in summary.models if model.headline)
    rows = (HeadlineRow(headline, tuple(make_cell(model, headline) for model in models)) for headline in HEADLINES)
    judged = tuple(row for row in rows if any(cell.verdict for cell in row.cells))
    return HeadlineTable(models, judged, tuple(answer(model) for model in models))


STANDINGS: Mapping[str, str] = MappingProxyType(
    {
        "robust": "Robust, under both procedures",
        "artifact": "Artifact, as published only",
        "hidden": "Hidden, when controlled only",
        "refuted": "Refuted, under both procedures",
    }
)
"""What is said of claims by their standing."""


def answer(model: ModelSummary) -> Answer:
    """The answer on a model."""
    numbers: dict[str, list[int]] = {}
    ordered = sorted(model.headline, key=lambda verdict: _order(verdict.standing))
    for verdict in ordered:
        numbers.setdefault(_in_words(verdict), []).append(verdict.headline.number)
    sentences = tuple(f"{words}: {_claims(of_words)}." for words, of_words in numbers.items())
    differing = [verdict.headline.number for verdict in model.headline if verdict.differing]
    if model.is_planted:
        differs = f"Not as its mechanism predicts: {_claims(differing)}." if differing else ""
        return Answer(model, sentences, differs or "All as its mechanism predicts.")
    asserted = any(row.expected is not None for row in model.rows)
    return Answer(model, sentences, "" if asserted else "The paper asserts nothing of this model.")


def _order(standing: str | None) -> int:
    return [*STANDINGS, None].index(standing)


def _in_words(verdict: HeadlineVerdict) -> str:
    """'Robust, under both procedures', or 'Replicated as published, inconclusive when controlled'."""
    if verdict.standing is not None:
        return STANDINGS[verdict.standing]
    outcomes = {"as published": verdict.published, "when controlled": verdict.controlled}
    judged = {place: outcome.lower() for place, outcome in outcomes.items() if outcome is not None}
    if len({*judged.values()}) == 1 and len(judged) == 2:
        return f"{next(iter(judged.values()))} under both procedures".capitalize()
    return ", ".join(f"{outcome} {place}" for place, outcome in judged.items()).capitalize()


def _claims(numbers: Sequence[int]) -> str:
    """'claims 1, 2 and 3'."""
    *most, last = map(str, numbers)
    return f"claims {', '.join(most)} and {last}" if most else f"claim {last}"


def make_cell(model: ModelSummary, headline: Headline) -> HeadlineCell:
    """A headline claim on a model."""
    verdict = next((verdict for verdict in model.headline if verdict.headline.number == headline.number), None)
    return HeadlineCell(model, verdict, () if verdict is None else tuple(_procedure_verdicts(verdict)))


def _procedure_verdicts(verdict: HeadlineVerdict) -> Iterator[ProcedureVerdict]:
    previous_reason = ""
    for procedure, outcome, rows in (
        ("published", verdict.published, verdict.published_rows),
        ("controlled", verdict.controlled, verdict.controlled_rows),
    ):
        row = find_deciding_row(rows, outcome)
        if outcome is not None and row is not None:
            reason = explain(row) if row.verdict == outcome else f"{ALONE}: {explain(row)}"
            yield ProcedureVerdict(procedure, outcome, row, "" if reason == previous_reason else reason)
            previous_reason = reason


def explain(row: Judgement) -> str:
    """The reason for a verdict in one line: the mechanism of a planted model, else the numbers or the failed gate.

    The mechanism explains the planted verdict. If another verdict came out, only the numbers explain it.
    """
    return shorten(row.because if row.because and row.as_expected else row.reason, MAX_REASON, placeholder=" ...")


MECHANISMS: Mapping[str, str] = MappingProxyType(
    {
        "pointer": "The question token takes the slot of its box's swap partner, group B finds that slot, and group A"
        " copies the object there. This is the paper's account.",
        "recency": "The answer comes as in pointer, but not through the heads that are called group B: these prefer"
        " boxes that were named later, whatever the question.",
        "global": "Each full stop stores the whole state, and the question looks up its box there. No group B.",
        "lexical": "Boxes are found by the text of their labels. There is no slot code.",
    }
)
"""How a planted mechanism answers."""
NAME = re.compile(r"planted:([a-z]+)(?:\+([a-z_]+))?")
TRAINED_KINDS = ("learned", "adapter")


@dataclass(frozen=True)
class Prediction:
    """The verdicts on a headline claim that follow from a planted mechanism."""

    number: int
    published: str | None
    controlled: str | None


@dataclass(frozen=True)
class MechanismNote:
    """How one planted model answers, and what this predicts for the headline claims."""

    model: str
    description: str
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanation at the top of the page: a note for each planted model, and the names of learned models."""

    notes: tuple[MechanismNote, ...]
    learned_models: tuple[str, ...]


def explain_mechanisms(run: ReportedRun) -> Explanation:
    """The explanation of a run; without planted or learned models it is empty."""
    pairs = list(zip(run.models, run.summary.models, strict=True))
    notes = tuple(make_note(summary) for _, summary in pairs if summary.is_planted)
    return Explanation(notes, tuple(summary.name for model, summary in pairs if _is_trained(model, summary)))


def _is_trained(model: ReportedModel, summary: ModelSummary) -> bool:
    """Whether the project or its user taught the model the task, so that the paper asserts nothing of it."""
    return model.about.get("kind") in TRAINED_KINDS and all(row.expected is None for row in summary.rows)


def make_note(summary: ModelSummary) -> MechanismNote:
    """The note on a planted model."""
    match = NAME.match(summary.name)
    description = MECHANISMS.get(match.group(1), "") if match else ""
    if description and match and match.group(2):
        description += f" The variant {match.group(2)} changes this, the declared circuit or the predicted numbers."
    return MechanismNote(summary.name, description, tuple(predict(summary.headline)))


def predict(verdicts: Sequence[HeadlineVerdict]) -> Iterator[Prediction]:
    """The predicted verdict on each headline claim that was judged."""
    for verdict in verdicts:
        published, controlled = (_predict_rows(rows) for rows in (verdict.published_rows, verdict.controlled_rows))
        yield Prediction(verdict.headline.number, published, controlled)


def _predict_rows(rows: Sequence[Judgement]) -> str | None:
    """The verdict of several rows if each has its planted verdict; gates are left out."""
    return verdict_of_all(row.expected.partition(" (")[0] for row in rows if row.expected is not None)
