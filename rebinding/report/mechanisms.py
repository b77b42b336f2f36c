"""Why NOT REPLICATED can be the correct verdict: what is known of the mechanism of planted and learned models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rebinding.report.folder import Model, Run
from rebinding.report.summary import ModelSummary
from rebinding.verdicts.headline import HeadlineVerdict, verdict_of_all
from rebinding.verdicts.judgement import Judgement

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


def explain_mechanisms(run: Run) -> Explanation:
    """The explanation of a run; without planted or learned models it is empty."""
    pairs = list(zip(run.models, run.summary.models, strict=True))
    notes = tuple(make_note(summary) for _, summary in pairs if summary.is_planted)
    return Explanation(notes, tuple(summary.name for model, summary in pairs if _is_trained(model, summary)))


def _is_trained(model: Model, summary: ModelSummary) -> bool:
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
