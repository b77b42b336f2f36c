"""Compare rows of evidence with full forwards, within a tolerance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.prompts import Stories
from rebinding.task.prompts import Encoded
from tests.close import ROUNDING
from tests.reference.naive.plain_model import Head, Plain

Values: TypeAlias = Mapping[str, float | bool | None]
"""A row's numbers by column. None stands for a truth that hangs on less than rounding."""


@dataclass(frozen=True, eq=False)
class EvidenceRow:
    """A row of the evidence of a request, and the model and prompts from which it is computed again."""

    plain: Plain
    prompts: Stories
    request: Any
    evidence: pd.DataFrame
    index: int

    def __getitem__(self, column: str) -> Any:
        return self.evidence.at[self.index, column]

    @property
    def source(self) -> tuple[Plain, Stories, Any, pd.DataFrame]:
        """All but its number."""
        return self.plain, self.prompts, self.request, self.evidence

    @property
    def head(self) -> Head:
        return int(self["layer"]), int(self["head"])

    @property
    def place(self) -> int:
        """Where its prompt is among those of the request; of one id's two directions that with this answer's slot."""
        encoded, by_slot = self.prompts.encode(self.request.prompts), "answer_slot" in self.evidence
        ids = [number for number, size in zip(encoded.request.ids, encoded.sizes, strict=True) for _ in range(size)]
        return next(
            place
            for place, (number, prompt) in enumerate(zip(ids, encoded.prompts, strict=True))
            if number == self["prompt"] and (not by_slot or answer_slot(prompt) == self["answer_slot"])
        )

    @property
    def prompt(self) -> Encoded:
        prompt: Encoded = self.prompts.encode(self.request.prompts).prompts[self.place]
        return prompt

    @property
    def counterfactual(self) -> Encoded:
        prompt: Encoded = self.prompts.encode(self.request.prompts).counterfactuals[self.place]
        return prompt


def answer_slot(prompt: Encoded) -> int:
    return prompt.prompt.story.objects.index(prompt.prompt.answer)


Recompute: TypeAlias = Callable[[EvidenceRow], tuple[Values, float]]
"""A row's numbers, computed again; and the largest number on the way (logits; scores, where attention is read or
edited), of which rounding is a share."""
UNMEASURED = ("ran",)
"""What says how a number was come by: a cell that was not run is held against one that is."""


@dataclass(frozen=True)
class Compared:
    """How many rows agree, the largest difference as a share of what rounding allows, and what does not agree."""

    rows: int = 0
    worst: float = 0.0
    undecided: int = 0
    wrong: tuple[str, ...] = ()

    def __add__(self, other: Compared) -> Compared:
        worst, wrong = max(self.worst, other.worst), self.wrong + other.wrong
        return Compared(self.rows + other.rows, worst, self.undecided + other.undecided, wrong)


def compared(row: EvidenceRow, recompute: Recompute) -> Compared:
    """Every number and every truth of a row beside its own."""
    columns = {str(name): column.dtype.kind for name, column in row.evidence.items()}
    measured = [name for name, kind in columns.items() if kind in "fb" and name not in UNMEASURED]
    values, size = recompute(row)
    lacking = set(measured) - set(values)
    assert not lacking, f"nothing is computed again for {', '.join(sorted(lacking))}"
    decided = {name: float(value) for name in measured if (value := values[name]) is not None}
    shares = {
        name: 0.0 if pd.isna(row[name]) and pd.isna(value) else abs(float(row[name]) - value) / (ROUNDING * size)
        for name, value in decided.items()
    }
    wrong = tuple(
        f"{name} of {row.evidence.loc[row.index].to_dict()}: {decided[name]} by hand, {share:.1f} times too far"
        for name, share in shares.items()
        if not share <= 1
    )
    return Compared(1, max(shares.values(), default=0.0), len(measured) - len(decided), wrong)


def sample_rows(rows: pd.DataFrame, count: int, request: Request) -> list[int]:
    """The numbers of some rows, the same in every run and others for every request; and of the row that the edit
    changes most, since an edit that was not made would pass where it changes nothing."""
    selection = set(random.Random(request.key).sample(range(len(rows)), min(count, len(rows))))
    edited = most_changed(rows)
    return sorted(selection | ({edited[0]} if edited else set()))


def most_changed(rows: pd.DataFrame) -> tuple[int, float] | None:
    """The row whose numbers an edit changes most, and by how much; None where no column has its unedited value."""
    pairs = [
        (name, base)
        for name in rows.columns
        for base in (f"base_{name}", name.replace("after", "before"), name.replace("_patch", "_orig"))
        if base != name and base in rows.columns and rows[name].dtype.kind == "f"
    ]
    if not pairs or rows.empty:
        return None
    changes = pd.concat([(rows[name] - rows[base]).abs().reset_index(drop=True) for name, base in pairs], axis=1)
    largest = changes.max(axis=1).fillna(0.0)
    return int(largest.to_numpy().argmax()), float(largest.max())


def sized(*logits: Tensor, minimum: float = 1.0) -> float:
    """The largest number among logits, or `minimum`."""
    return max(minimum, *(float(logit.abs().max()) for logit in logits))


TORN = 6 * torch.finfo(torch.float32).eps / ROUNDING
"""What a score adds to the size of logits where an edit leaves a head between two tokens: it is off by the rounding of
query, key and product (of 4 units each, `tests.arithmetic.rounding`), and moves what is read by at most a quarter of
that, from one answer to another, two sizes away. Seen under `--rounding 1` and `2`: 2 units of the score, of 6."""


def torn(size: float, scores: float) -> float:
    """A size of logits where heads with such scores may be torn between two tokens."""
    return size * (1 + TORN * scores)


def relative_difference(new: Tensor, old: Tensor) -> float:
    """The largest change of a vector, as a share of the largest number in either."""
    return float((new - old).abs().max() / torch.maximum(new.abs().max(), old.abs().max()).clamp_min(1e-38))


def sure(gap: float, size: float) -> bool | None:
    """Whether a gap is above 0, if that hangs on more than rounding."""
    return None if abs(gap) <= 2 * ROUNDING * size else gap > 0
