"""Measure what section 5 requests."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.directions import Directions, measure_directions
from rebinding.experiments.binding.exchange import run_exchange
from rebinding.experiments.binding.request import BINDING, Exchange, MeanVectors, Shifts
from rebinding.experiments.binding.shifts import run_binding
from rebinding.experiments.seeds import MATCHED
from rebinding.experiments.workbench import Workbench, averages, measures


@averages(MeanVectors)
def measure_vectors(bench: Workbench, request: MeanVectors) -> Mapping[str, Tensor]:
    prompts = {slot: bench.prompts.drawn(one).prompts for slot, one in enumerate(request.slots)}
    found = measure_directions(bench.surgeon, prompts, request.heads, point=request.point)
    return {"q": found.q, "k": found.k}


@measures(Shifts)
def measure_shifts(bench: Workbench, request: Shifts) -> Evidence:
    """Every batch of directions on every prompt, with its own random vectors; `draw` counts on from batch to batch."""
    found = [_of_batch(bench, request, batch, MATCHED + number) for number, batch in enumerate(request.batches)]
    rows = [one.rows.assign(draw=one.rows["draw"] + number * request.draws) for number, one in enumerate(found)]
    return BINDING.evidence(pd.concat(rows, ignore_index=True), found[0].settings)


def _of_batch(bench: Workbench, request: Shifts, batch: MeanVectors, seed: int) -> Evidence:
    return run_binding(
        bench.surgeon,
        bench.prompts.drawn(request.prompts).prompts,
        Directions(batch.heads, batch.point, **bench.tensors(batch)),
        batch.heads,
        ids=request.prompts.ids,
        token=lambda word: bench.prompts.encoder.answer_token(word, request.answers),
        pairs=request.slots,
        conditions=request.conditions,
        scope=request.scope,
        draws=request.draws,
        seed=seed,
    )


@measures(Exchange)
def measure_exchange(bench: Workbench, request: Exchange) -> Evidence:
    return run_exchange(
        bench.surgeon,
        bench.prompts.drawn(request.prompts).prompts,
        [bench.prompts.drawn(one).prompts for one in request.donors],
        request.heads,
        ids=request.prompts.ids,
        token=lambda word: bench.prompts.encoder.answer_token(word, request.answers),
        pairs=request.slots,
    )
