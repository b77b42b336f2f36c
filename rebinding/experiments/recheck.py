"""Compute a random sample of evidence again, on the same weights, to see whether somebody's evidence is true.

All rows of a model's evidence are one population, from which N rows are drawn, each with the same chance. A drawn row
is computed again from its request alone, which the evidence carries: the request is rebuilt, its key must be the one
in the file, and it runs on the prompt of the row. If F of N drawn rows are false, `most_false` bounds the share of
false rows in the whole population. Whoever made the evidence cannot know which rows will be drawn.

Two kinds of evidence cannot be compared. One is rounding itself (`NOISE`). In the other a number decides what is
computed next (`BRANCHING`), so that rounding can change all rows that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.experiments.prompts import Stories
from rebinding.experiments.table import EXPERIMENTS
from rebinding.experiments.workbench import Workbench
from rebinding.models.devices import check_dtype, torch_dtype
from rebinding.verdicts.estimates import clopper_pearson

NOISE = ("replays", "floors")
BRANCHING = ("pruning", "search steps", "search losses", "crossings", "searched circuit")
UNITS: Mapping[str, int] = {"float32": 400, "bfloat16": 8, "float16": 8}
"""Units in the last place of a part's largest number by which two computations may differ. In float32 the worst seen
is 115 (tests/close.py), and 46 between a processor and a GPU (44,000 rows of Gemma-3-270M). In bfloat16 the logits
themselves are rounded: the worst seen there, beside the same weights in float32, is 5."""
LEVEL = 0.95
ANSWERS: Mapping[str, str] = {"hit": "margin", "base_hit": "base_margin"}
"""Columns that say whether an answer is right, with the number whose sign it is."""
WITHOUT_NUMBER = ("right", "correct", "original_correct", "counterfactual_correct")
"""Such columns without that number in the row: in 16 bits many answers are nearly ties, so they are not compared."""


class RecheckError(ValueError):
    """Evidence that cannot be computed again."""


@dataclass(frozen=True)
class Drawn:
    """A drawn row: the name of its evidence, and its number there."""

    name: str
    row: int


@dataclass(frozen=True)
class Compared:
    """A drawn row after it was computed again.

    `worst` is the largest difference in the row as a share of what is allowed, infinite where the rows are not about
    the same thing. `part_rows` rows were computed with it, of which `part_false` differ by more than is allowed.
    """

    drawn: Drawn
    worst: float
    part_rows: int
    part_false: int

    @property
    def is_false(self) -> bool:
        return not self.worst <= 1


def draw(evidence: Mapping[str, Evidence], n: int, seed: int) -> list[Drawn]:
    """`n` rows of all that can be compared, without replacement, in the order of their evidence."""
    counts = {name: len(piece.rows) for name, piece in sorted(evidence.items()) if is_comparable(piece)}
    total = sum(counts.values())
    if not total:
        raise RecheckError("no evidence of this model can be computed again: it has no rows that can be compared")
    numbers = np.sort(np.random.default_rng(seed).choice(total, size=min(n, total), replace=False))
    ends = np.cumsum(list(counts.values()))
    names = list(counts)
    places = np.searchsorted(ends, numbers, side="right")
    return [
        Drawn(names[place], int(number - (ends[place] - counts[names[place]])))
        for place, number in zip(places, numbers, strict=True)
    ]


def is_comparable(evidence: Evidence) -> bool:
    """Whether evidence is neither rounding itself nor branches on it."""
    return evidence.experiment not in (*NOISE, *BRANCHING)


def most_false(false: int, n: int) -> float:
    """The largest share of false rows with which a sample of `n` would have `false` or fewer in 1 of 20 cases."""
    return float(clopper_pearson(false, n, 2 * LEVEL - 1)[1])


def recheck(
    evidence: Mapping[str, Evidence], drawn: list[Drawn], dtype: str, bench_of: Callable[[Request], Workbench]
) -> Iterator[Compared]:
    """Compute the drawn rows again, with all rows of the same prompt.

    A request that cannot be rebuilt is an error before anything is computed.
    """
    requests = {name: rebuild(evidence[name], name) for name in dict.fromkeys(row.name for row in drawn)}
    for name, rows in groupby(drawn, key=lambda row: row.name):
        piece, request = evidence[name], requests[name]
        bench = bench_of(request)
        done: dict[int | None, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for row in rows:
            id = int(piece.rows["prompt"].iloc[row.row]) if is_per_prompt(request, piece) else None
            if id not in done:
                places = np.arange(len(piece.rows)) if id is None else np.flatnonzero(piece.rows["prompt"] == id)
                stated = piece.rows.iloc[places].reset_index(drop=True)
                part = request if id is None else on_prompt(bench.prompts, request, id)
                done[id] = places, differences(stated, bench.get_block(part).rows, dtype)
            places, worst = done[id]
            place = int(np.flatnonzero(places == row.row)[0])
            yield Compared(row, float(worst[place]), len(worst), int((~(worst <= 1)).sum()))


def is_per_prompt(request: Request, evidence: Evidence) -> bool:
    """Whether each prompt can be computed by itself. Evidence on other prompts than its request says cannot be: the
    whole request shows what is missing."""
    if not (isinstance(request, OnPrompts) and request.PER_PROMPT and "prompt" in evidence.rows):
        return False
    return set(evidence.rows["prompt"]) == set(request.prompts.ids)


def rebuild(evidence: Evidence, name: str) -> Request:
    """The request of a piece of evidence, from its settings."""
    experiment = EXPERIMENTS.get(evidence.experiment)
    if experiment is None:
        raise RecheckError(f"{name}: this version has no experiment {evidence.experiment!r}")
    try:
        request = TypeAdapter(experiment.request).validate_python(evidence.settings["request"])
    except (ValidationError, KeyError) as error:
        raise RecheckError(f"{name}: its request is not as this version writes it ({error})") from error
    if request.plain.keys() != evidence.settings["request"].keys():
        raise RecheckError(
            f"{name}: its request has other fields than this version writes; use the version of the report"
        )
    if request.key != evidence.settings.get("key"):
        raise RecheckError(f"{name}: its request has another key than the file says; one of the two was changed")
    return request


def on_prompt(prompts: Stories, request: Request, id: int) -> Request:
    """The same request on one of its prompts."""
    assert isinstance(request, OnPrompts)
    place = request.prompts.ids.index(id)
    return prompts.part(request, place, place + 1)


def differences(stated: pd.DataFrame, computed: pd.DataFrame, dtype: str) -> NDArray[np.float64]:
    """For each row the largest difference as a share of what is allowed; infinite where the rows differ in kind."""
    if len(stated) != len(computed) or list(stated.columns) != list(computed.columns):
        return np.full(len(stated), np.inf)
    floats = [name for name in computed if computed[name].dtype.kind == "f"]
    allowed = allowance(computed[floats], dtype)
    worst = np.zeros(len(stated))
    for name in computed:
        if name in floats:
            worst = np.maximum(worst, _apart(stated[name], computed[name]) / allowed)
        elif name not in WITHOUT_NUMBER or dtype == "float32":
            differs = (stated[name].astype(str) != computed[name].astype(str)).to_numpy()
            worst = np.where(differs & ~_near_tie(str(name), computed, allowed), np.inf, worst)
    return worst


def allowance(numbers: pd.DataFrame, dtype: str) -> float:
    """How far two computations of a part may lie apart: units in the last place of its largest number."""
    values = np.abs(numbers.to_numpy(dtype=np.float64))
    largest = float(values[np.isfinite(values)].max(initial=1.0))
    return UNITS[dtype] * torch.finfo(torch_dtype(check_dtype(dtype))).eps * largest


def _apart(stated: pd.Series[float], computed: pd.Series[float]) -> NDArray[np.float64]:
    """How far two columns lie apart; equal infinities and two NaN do not."""
    a, b = stated.to_numpy(dtype=np.float64), computed.to_numpy(dtype=np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))


def _near_tie(name: str, computed: pd.DataFrame, allowed: float) -> NDArray[np.bool_]:
    """Rows in which rounding may turn a right answer into a wrong one."""
    margin = ANSWERS.get(name.removesuffix("_with_counterfactual"))
    if margin is None or margin not in computed:
        return np.zeros(len(computed), dtype=np.bool_)
    margins = (
        [margin, margin.replace("margin", "counterfactual_margin")] if name.endswith("_counterfactual") else [margin]
    )
    return (computed[[own for own in margins if own in computed]].abs() <= allowed).any(axis=1).to_numpy()
