"""Run the claims' own code in this process, on a model and a few prompts: verdicts and their evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from claims import conventions as candidates
from claims.catalogue import catalogue
from fixtures.judging import judge
from rebinding.evidence import Evidence, Request
from rebinding.evidence.request import EvidenceSource
from rebinding.evidence.store import Store
from rebinding.experiments import ablation
from rebinding.experiments import static as static_requests
from rebinding.experiments.ablation import PROMPTS_OF_MEANS
from rebinding.experiments.binding import swap_labels as label_requests
from rebinding.experiments.circuit import request as circuit_requests
from rebinding.experiments.paths import summary as path_summary
from rebinding.models import LoadedModel
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import BUILTIN_PROCEDURES, Procedure, builtin_procedure
from rebinding.study.engine import Engine, Session
from rebinding.study.gates import EvidenceLog, Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest, Sizes
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, sentences
from rebinding.verdicts.judgement import Judgement

SMALL_N, FEWER, ABLE = 3, 1, 9
"""Prompts of a row; of what is run at every layer or with every head, which takes most of the time in thirty layers;
and of what a gate looks at that wants the task done surely: 3 ** -7 is the first power below 0.1 %."""
SEARCHING = (
    "beyond.route_through_swap_labels",
    "beyond.groups_at_their_places",
    "circuit.recovers_most.controlled",
    "circuit.near_full.controlled",
)
"""Rows on a search over all heads and tokens: an hour of two cores in thirty layers, on however few prompts. What a
step of it computes is held against full forwards in tests/experiments/search."""
NEEDS_ABLE = ("robust.more_operations", "beyond.static_and_bystander")


class SmallSizes(Sizes):
    """Few prompts, whatever claims say. A planted model is fast enough for more of them."""

    draws = 2

    def of_claim(self, claim: Claim) -> int:
        if self.plant is None and claim.id.startswith("tracing."):
            return FEWER
        return ABLE if claim.id in NEEDS_ABLE else SMALL_N

    def of(self, kind: str) -> int:
        return ABLE if kind.startswith("able") else FEWER if kind == "paths" else SMALL_N

    def sets(self, most: int) -> int:
        return most

    def directions(self, sets: int) -> int:
        return SMALL_N


class SmallModel(ModelUnderTest):
    """A model that is judged on few prompts."""

    @cached_property
    def sizes(self) -> Sizes:
        return SmallSizes(self.plant, None)


AS_MEASURED = ("ability", "answered", "replays", "floors", "group-knockout")
"""Kinds that gates alone look at."""
SHAKEN = 1.0
"""By how much numbers move, in their own unit: logits, mostly."""


@dataclass(frozen=True)
class Shaken:
    """An evidence source that shakes what another gives: hits become coins, of a probability some share is left, and
    other numbers move. On a plant every effect is far on one side of every threshold; here some lie between any two."""

    source: EvidenceSource
    seed: int

    def get(self, request: Request) -> Evidence:
        evidence = self.source.get(request)
        if request.KIND.name in AS_MEASURED:
            return evidence
        chance = np.random.default_rng([int(request.key[:8], 16), self.seed])
        numbers = (name for name in map(str, evidence.rows) if _is_measured(name, evidence.rows[name].dtype))
        values = {name: _shuffle_numbers(evidence.rows[name], chance) for name in numbers}
        return request.KIND.evidence(evidence.rows.assign(**values), evidence.settings)


class ShakingEngine(Engine):
    """Computes in this process, and shakes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        session = super().session(loaded_model, store, skip_prompts=skip_prompts)
        return replace(session, source=Shaken(session.source, self.seed))


def _is_measured(name: str, column: Any) -> bool:
    """What stands in every row of a prompt alike (`base`), and what tells whether edits moved anything, stays."""
    return (column.kind == "f" or "hit" in name) and not name.startswith(("base", "relative_change"))


def _shuffle_numbers(numbers: pd.Series, chance: np.random.Generator) -> pd.Series:
    present = numbers.dropna()
    if present.isin((0.0, 1.0)).all():
        flags = chance.integers(0, 2, len(numbers)).astype(float)
    elif present.between(0.0, 1.0).all():
        flags = (numbers * chance.uniform(0.0, 1.0, len(numbers))).to_numpy()
    else:
        flags = (numbers + chance.normal(0.0, SHAKEN, len(numbers))).to_numpy()
    return pd.Series(flags, numbers.index).where(numbers.notna()).astype(numbers.dtype)


@dataclass(frozen=True)
class Row:
    """What the judge says of a row, and what it asked for."""

    claim: Claim
    judgement: Judgement
    grounds: tuple[Request, ...]
    parts: tuple[Verdict, ...] = ()
    """What its sentence says one by one, each with its name in `part`; the verdict tells one of them."""


@dataclass(frozen=True, eq=False)
class Judged:
    """All rows on one model."""

    case: ModelUnderTest
    study: Study
    rows: tuple[Row, ...]

    @property
    def evidence_by_request(self) -> dict[Request, Evidence]:
        """Every piece of evidence that some row asked for."""
        return self.study.log.evidence


def judged(
    name: str,
    circuit_file: Path | None = None,
    *,
    ways: tuple[Procedure, ...] | None = None,
    engine: Engine | None = None,
    gates: Callable[[ModelUnderTest, EvidenceLog], Gates] = Gates,
) -> Judged:
    """Every row of the claims judged on a model, but those on a search. Sizes that no setting changes are made small
    as well: what is compared is arithmetic, for which any number of prompts will do."""
    spec = parse_model(name)
    circuit_text = None if circuit_file is None else str(circuit_file)
    settings = Settings(
        (spec,),
        device="cpu",
        dtype="float32",
        circuit=circuit_text,
        procedures=ways or choose_few_procedures(),
        engine=engine or Engine(),
    )
    small = SmallModel(spec, settings)
    study = Study.of(small, gates=gates)
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in SMALLER:
            patch.setattr(module, constant, value)
        parts = _record_parts(patch)
        asked_for = (row for row in catalogue() if row.claim.id not in SEARCHING)
        rows = tuple(_row(row.claim, small, study, row.test, parts) for row in asked_for)
    return Judged(small, study, rows)


def _record_parts(patch: pytest.MonkeyPatch) -> list[Verdict]:
    """Where the parts of sentences are left, as they are put together; under several conventions each with its name."""
    parts: list[Verdict] = []
    conventions: list[str] = []

    def record_single(judge: Callable[[str, float], Verdict], name: str, *, level: float) -> Verdict:
        conventions.append(name)
        verdict = judge(name, level)
        conventions.pop()
        return verdict

    def noting(combine: Callable[..., Any]) -> Callable[..., Any]:
        def record_family(verdicts: Mapping[str, Verdict], *arguments: Any) -> Any:
            parts.extend(
                replace(verdict, part=(*conventions, name, *verdict.part)) for name, verdict in verdicts.items()
            )
            return combine(verdicts, *arguments)

        return record_family

    for put_together in ("_p_value", "_most_rejected"):
        patch.setattr(sentences, put_together, noting(getattr(sentences, put_together)))
    patch.setattr(candidates, "_at_level", record_single)
    return parts


def choose_few_procedures() -> tuple[Procedure, ...]:
    """The two procedures, with few sets of directions and one of the published discoveries that it may have been."""
    return tuple(
        replace(procedure, circuit=next(iter(procedure.circuit.candidates.values()))) for procedure in limit_batches()
    )


def limit_batches() -> tuple[Procedure, ...]:
    """The two procedures, with two sets of directions at the most."""
    return tuple(
        replace(procedure, binding=replace(procedure.binding, batches=min(2, procedure.binding.batches)))
        for procedure in map(builtin_procedure, BUILTIN_PROCEDURES)
    )


SMALLER: tuple[tuple[Any, str, Any], ...] = (
    (ablation, "PROMPTS_OF_MEANS", dict.fromkeys(PROMPTS_OF_MEANS, SMALL_N)),
    (circuit_requests, "DRAWS", 2),
    (static_requests, "DRAWS", 2),
    (label_requests, "PROMPTS_OF_LABELS", ABLE),
    (circuit_requests, "ORDERS", 2),
    (path_summary, "STATIC_PAIRS", FEWER),
    (circuit_requests, "RANDOM_SETS", 2),
)


def _row(claim: Claim, small: ModelUnderTest, study: Study, test: Any, parts: list[Verdict]) -> Row:
    """Of so few prompts a head's score may have no spread at all, and is then surely what it is: t is infinite."""
    parts.clear()
    with np.errstate(over="ignore"):
        verdict = judge(claim, small, study, test)
    return Row(claim, verdict, tuple(use.request for use in study.log.used if use.supports_verdict), tuple(parts))
