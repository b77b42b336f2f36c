"""Measure the requests of section 5."""

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
    prompts = {slot: bench.prompts.encode(of_slot).prompts for slot, of_slot in enumerate(request.slots)}
    directions = measure_directions(bench.surgeon, prompts, request.heads)
    return {"q": directions.q, "k": directions.k}


@measures(Shifts)
def measure_shifts(bench: Workbench, request: Shifts) -> Evidence:
    """Run every batch of directions on every prompt, with random vectors of its own; `draw` counts over all batches."""
    results = [_of_batch(bench, request, batch, MATCHED + number) for number, batch in enumerate(request.batches)]
    rows = [
        result.rows.assign(draw=result.rows["draw"] + number * request.draws) for number, result in enumerate(results)
    ]
    return BINDING.evidence(pd.concat(rows, ignore_index=True), results[0].settings)


def _of_batch(bench: Workbench, request: Shifts, batch: MeanVectors, seed: int) -> Evidence:
    return run_binding(
        bench.surgeon,
        bench.prompts.encode(request.prompts).prompts,
        Directions(batch.heads, **bench.tensors(batch)),
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
        bench.prompts.encode(request.prompts).prompts,
        [bench.prompts.encode(donor).prompts for donor in request.donors],
        request.heads,
        ids=request.prompts.ids,
        token=lambda word: bench.prompts.encoder.answer_token(word, request.answers),
        pairs=request.slots,
    )
