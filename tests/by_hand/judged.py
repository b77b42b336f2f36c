"""The claims' own code in this process, on a model and a few prompts: verdicts, and the evidence that they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fixtures.judging import judge
from rebinding.evidence import Evidence, Request
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import GIVEN, Procedure, given
from rebinding.power.rows import rows
from rebinding.study import case, circuit, contributions, knockout, static
from rebinding.study.asked import asked_of
from rebinding.study.bench import Bench
from rebinding.study.case import Case
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, sentences
from rebinding.verdicts.judgement import Judgement

FEW, FEWER, ABLE = 3, 1, 9
"""Prompts of a row; of what is run at every layer or with every head, which takes most of the time in thirty layers;
and of what a gate looks at that wants the task done surely: 3 ** -7 is the first power below 0.1 %."""
SEARCHING = ("beyond.route_through_swap_labels", "beyond.groups_at_their_places")
"""Rows on a search over all heads and tokens: an hour of two cores in thirty layers, on however few prompts. What a
step of it computes is held against full forwards in tests/anywhere."""
NEEDS_ABLE = ("robust.more_operations", "beyond.static_and_bystander")


class Small(Case):
    """A case that asks for few prompts, whatever rows say."""

    def n(self, claim: Claim) -> int:
        if self.plant is None and claim.id.startswith("tracing."):
            return FEWER
        return ABLE if claim.id in NEEDS_ABLE else FEW

    def size(self, what: str) -> int:
        return ABLE if what.startswith("able") else FEWER if what == "paths" else FEW

    def directions(self, sets: int) -> int:
        return FEW


AS_MEASURED = ("ability", "replays", "floors")
"""Kinds that gates alone look at."""
SHAKEN = 1.0
"""By how much numbers move, in their own unit: logits, mostly."""


@dataclass(frozen=True, eq=False)
class Shaken(Study):
    """A study whose evidence is measured, and then shaken: hits become coins, of a probability some share is left, and
    other numbers move. On a plant every effect is far on one side of every threshold; here some lie between any two."""

    seed: int = field(kw_only=True)

    def _measured(self, bench: Bench, request: Request) -> Evidence:
        found = super()._measured(bench, request)
        if request.KIND.name in AS_MEASURED:
            return found
        chance = np.random.default_rng([int(request.key[:8], 16), self.seed])
        numbers = (name for name in map(str, found.rows) if _is_measured(name, found.rows[name].dtype))
        made = {name: _moved(found.rows[name], chance) for name in numbers}
        return request.KIND.evidence(found.rows.assign(**made), found.settings)


def _is_measured(name: str, of: Any) -> bool:
    """What stands in every row of a prompt alike (`base`), and what tells whether edits moved anything, stays."""
    return (of.kind == "f" or "hit" in name) and not name.startswith(("base", "moved"))


def _moved(numbers: pd.Series, chance: np.random.Generator) -> pd.Series:
    there = numbers.dropna()
    if there.isin((0.0, 1.0)).all():
        made = chance.integers(0, 2, len(numbers)).astype(float)
    elif there.between(0.0, 1.0).all():
        made = (numbers * chance.uniform(0.0, 1.0, len(numbers))).to_numpy()
    else:
        made = (numbers + chance.normal(0.0, SHAKEN, len(numbers))).to_numpy()
    return pd.Series(made, numbers.index).where(numbers.notna()).astype(numbers.dtype)


@dataclass(frozen=True)
class Row:
    """What the judge says of a row, and what it asked for."""

    claim: Claim
    told: Judgement
    grounds: tuple[Request, ...]
    parts: tuple[Verdict, ...] = ()
    """What its sentence says one by one, each with its name before its reason; the verdict tells one of them."""


@dataclass(frozen=True, eq=False)
class Judged:
    """All rows on one model."""

    case: Case
    study: Study
    rows: tuple[Row, ...]

    @property
    def known(self) -> dict[Request, Evidence]:
        """Every piece of evidence that some row asked for."""
        return self.study.known


def judged(
    name: str,
    circuit_file: Path | None = None,
    *,
    ways: tuple[Procedure, ...] | None = None,
    study_of: Callable[[Case], Study] = Study,
) -> Judged:
    """Every row of the claims judged on a model, but those on a search. Sizes that no setting changes are made small
    as well: what is compared is arithmetic, for which any number of prompts will do."""
    asked = asked_of(name)
    told = None if circuit_file is None else str(circuit_file)
    small = Small(asked, Settings((asked,), device="cpu", dtype="float32", circuit=told, procedures=ways or few_ways()))
    study = study_of(small)
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in SMALLER:
            patch.setattr(module, constant, value)
        parts = _noted(patch)
        asked_for = (one for one in rows() if one.claim.id not in SEARCHING)
        found = tuple(_row(one.claim, small, study, one.test, parts) for one in asked_for)
    return Judged(small, study, found)


def _noted(patch: pytest.MonkeyPatch) -> list[Verdict]:
    """Where the parts of sentences are left, as they are put together."""
    parts: list[Verdict] = []

    def noting(whole: Callable[..., Any]) -> Callable[..., Any]:
        def noted(verdicts: Mapping[str, Verdict], *others: Any) -> Any:
            parts.extend(replace(one, reason=f"{name}: {one.reason}") for name, one in verdicts.items())
            return whole(verdicts, *others)

        return noted

    for put_together in ("_p_value", "_telling"):
        patch.setattr(sentences, put_together, noting(getattr(sentences, put_together)))
    return parts


def few_ways() -> tuple[Procedure, ...]:
    """The two procedures, with few sets of directions and one of the published discoveries that it may have been."""
    return tuple(replace(one, circuit=next(iter(one.circuit.candidates.values()))) for one in few_batches())


def few_batches() -> tuple[Procedure, ...]:
    """The two procedures, with two sets of directions at the most."""
    return tuple(
        replace(one, binding=replace(one.binding, batches=min(2, one.binding.batches))) for one in map(given, GIVEN)
    )


SMALLER: tuple[tuple[Any, str, Any], ...] = (
    (circuit, "PROMPTS_OF_MEANS", dict.fromkeys(circuit.PROMPTS_OF_MEANS, FEW)),
    (circuit, "DRAWS", 2),
    (static, "DRAWS", 2),
    (knockout, "DRAWS", 2),
    (circuit, "ORDERS", 2),
    (static, "PAIRS", FEWER),
    (contributions, "RANDOM_SETS", 2),
    (case, "DRAWS", 2),
    (case, "PLANTED_DRAWS", 2),
)


def _row(claim: Claim, small: Case, study: Study, test: Any, parts: list[Verdict]) -> Row:
    """Of so few prompts a head's score may have no spread at all, and is then surely what it is: t is infinite."""
    parts.clear()
    with np.errstate(over="ignore"):
        told = judge(claim, small, study, partial(test, claim, study))
    return Row(claim, told, tuple(use.request for use in study.used if use.ground), tuple(parts))
