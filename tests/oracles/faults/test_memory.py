"""Whole experiments on a device whose memory runs out: the same evidence, up to rounding, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.circuit.request import request_ablation
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.surgery import torch_surgeon
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.close import allowance
from tests.everyday import sampled

EXPERIMENTS = ("ablation", "interchange", "ability", "paths", "shifts")
"""Ablations run heads alone at their means, all others replay a recording."""


@cache
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


def run_small(experiment: str) -> Evidence:
    """An experiment on a few prompts, of a model that remembers nothing of the time before."""
    bench = Workbench(loaded_model())
    prompts, heads, procedure = bench.prompts, Circuit(build("pointer").circuit), builtin_procedure("published")
    design, conventions = prompts.design("published"), conventions_of_plant(procedure.circuit, "published")
    if experiment == "ablation":
        return bench.get(request_ablation(prompts, heads, design, "counterbalanced", n=1, comparison="groups"))
    if experiment == "interchange":
        return bench.get(request_interchange(prompts, heads, design, "pointer", 4, procedure.roles))
    if experiment == "ability":
        return bench.get(request_ability(prompts, design, 4))
    if experiment == "paths":
        pairs = draw_noise_pairs(prompts, conventions, 2)
        return bench.get(request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions))
    binding = procedure.binding
    return bench.get(request_shifts(prompts, heads, "published", "isolated", binding, n=2, directions=2, draws=1))


@contextmanager
def tight(limit: int, sizes: list[int]) -> Iterator[None]:
    """A device on which more rows than `limit` do not fit; `sizes` gets those of the batches that do."""

    def watched(run: Callable[..., Any], rows: Callable[..., int]) -> Callable[..., Any]:
        def record_attempt(*arguments: Any, **options: Any) -> Any:
            if rows(*arguments) > limit:
                raise torch.OutOfMemoryError(f"pretend: {rows(*arguments)} rows")
            sizes.append(rows(*arguments))
            return run(*arguments, **options)

        return record_attempt

    with pytest.MonkeyPatch.context() as patch:
        batch, original = TorchSurgeon._run_batch, torch_surgeon.run_mean_ablated
        patch.setattr(TorchSurgeon, "_run_batch", watched(batch, lambda surgeon, batch, *rest: batch.rows.numel()))
        patch.setattr(torch_surgeon, "run_mean_ablated", watched(original, lambda *arguments: arguments[4].numel()))
        yield


@pytest.mark.parametrize("experiment", sampled(EXPERIMENTS, "ability"))
def test_evidence_is_equal_at_any_memory_limit(experiment: str) -> None:
    """The same rows: numbers up to the rounding of sums taken in another order, everything else to the letter."""
    sizes: list[int] = []
    with tight(10**9, sizes):
        expected = run_small(experiment)
    numbers = expected.rows.select_dtypes("float").columns
    values = expected.rows[numbers].to_numpy()
    for limit in (2, max(sizes) - 1):
        attempts: list[int] = []
        with tight(limit, attempts):
            actual = run_small(experiment)
        assert max(attempts) <= limit < max(sizes)
        assert actual.settings == expected.settings
        pd.testing.assert_frame_equal(actual.rows.drop(columns=numbers), expected.rows.drop(columns=numbers))
        close = allowance(values[~np.isnan(values)])
        assert np.allclose(actual.rows[numbers].to_numpy(), values, rtol=0, atol=close, equal_nan=True)


def test_a_row_that_does_not_fit_is_an_error() -> None:
    with tight(0, []), pytest.raises(torch.OutOfMemoryError, match="1 rows"):
        run_small("ability")
