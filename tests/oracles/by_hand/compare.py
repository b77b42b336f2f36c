"""Compare rows of evidence with full forwards, within a tolerance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.prompts import Stories
from rebinding.task.prompts import Encoded
from tests.close import ROUNDING
from tests.reference.naive.plain_model import Plain


@dataclass(frozen=True)
class Recomputation:
    """A row's numbers, computed again. `size` is the largest number on the way (logits; scores, where attention is
    read or edited), of which rounding is a share. None stands for a truth that hangs on less than rounding."""

    row: int
    values: Mapping[str, float | bool | None]
    size: float


def numbered(rows: pd.DataFrame) -> Iterator[tuple[int, Any]]:
    """Rows with the numbers that they have in the whole evidence."""
    for index, row in rows.iterrows():
        yield int(str(index)), row


def find_prompt(prompts: Stories, request: Any, row: Any) -> Encoded:
    """The prompt that a row is about."""
    prompt: Encoded = prompts.encode(request.prompts).prompts[request.prompts.ids.index(int(row["prompt"]))]
    return prompt


Recompute: TypeAlias = Callable[[Plain, Stories, Any, pd.DataFrame], Iterable[Recomputation]]
"""From a model, its prompts, a request and some rows of its evidence to these rows again."""
UNMEASURED = ("ran",)
"""What says how a number was come by: a cell that was not run is held against one that is."""


@dataclass(frozen=True)
class Compared:
    """How many rows agree, the largest difference as a share of what rounding allows, and what does not agree."""

    rows: int
    worst: float
    undecided: int
    wrong: tuple[str, ...]


def compared(rows: pd.DataFrame, recomputations: Iterable[Recomputation]) -> Compared:
    """Every number and every truth of these rows beside its own."""
    measured = [name for name in rows.columns if rows[name].dtype.kind in "fb" and name not in UNMEASURED]
    worst, count, undecided, wrong = 0.0, 0, 0, []
    for recomputation in recomputations:
        lacking = set(measured) - set(recomputation.values)
        assert not lacking, f"nothing is computed again for {', '.join(sorted(lacking))}"
        count += 1
        for name in measured:
            actual: Any = rows.at[recomputation.row, name]
            expected = recomputation.values[name]
            if expected is None:
                undecided += 1
                continue
            share = abs(float(actual) - float(expected)) / (ROUNDING * recomputation.size)
            share = 0.0 if pd.isna(actual) and pd.isna(expected) else share
            worst = max(worst, share)
            if not share <= 1:
                wrong.append(
                    f"{name} of {rows.loc[recomputation.row].to_dict()}: {expected} by hand, {share:.1f} times too far"
                )
    return Compared(count, worst, undecided, tuple(wrong))


def sample_rows(rows: pd.DataFrame, count: int, request: Request) -> pd.DataFrame:
    """Some rows, the same in every run and others for every request; and the row that the edit changes most, since an
    edit that was not made would pass where it changes nothing."""
    selection = set(random.Random(request.key).sample(range(len(rows)), min(count, len(rows))))
    edited = most_changed(rows)
    return rows.iloc[sorted(selection | ({edited[0]} if edited else set()))]


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
    """The largest number among logits, or `least`."""
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
