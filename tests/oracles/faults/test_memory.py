"""Out of memory at small, odd and large sizes of a batch, in whole experiments: the same evidence up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_ablation
from rebinding.experiments.workbench import Workbench
from rebinding.paper.circuit import Circuit
from rebinding.planted import build
from rebinding.surgery import torch_surgeon
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.close import allowance
from tests.oracles.faults import small_run


def run_small() -> dict[str, Evidence]:
    """Roles, paths, binding, ability and ablations, of a model that remembers nothing of the time before."""
    settings, requests = small_run.plan()
    prompts = settings.prompts
    bench = Workbench(small_run.loaded_model(), None, prompts=prompts)
    heads = Circuit(build("pointer").circuit)
    ablated = request_ablation(prompts, heads, prompts.design("published"), "counterbalanced", n=2, comparison="groups")
    return {request.label: bench.get(request) for request in (*requests, ablated)}


@contextmanager
def tight(limit: int | None, sizes: list[int]) -> Iterator[None]:
    """A device on which more rows than `limit` do not fit; `sizes` gets those of the batches that do."""

    def watched(run: Callable[..., Any], rows: Callable[..., int]) -> Callable[..., Any]:
        def record_attempt(*arguments: Any, **options: Any) -> Any:
            if limit is not None and rows(*arguments) > limit:
                raise torch.OutOfMemoryError(f"pretend: {rows(*arguments)} rows")
            sizes.append(rows(*arguments))
            return run(*arguments, **options)

        return record_attempt

    with pytest.MonkeyPatch.context() as patch:
        batch, original = TorchSurgeon._run_batch, torch_surgeon.run_mean_ablated
        patch.setattr(TorchSurgeon, "_run_batch", watched(batch, lambda surgeon, batch, *rest: batch.rows.numel()))
        patch.setattr(torch_surgeon, "run_mean_ablated", watched(original, lambda *arguments: arguments[4].numel()))
        yield


def is_equal(actual: Evidence, expected: Evidence) -> bool:
    """The same rows: numbers up to the rounding of sums taken in another order, everything else to the letter."""
    floats = expected.rows.select_dtypes("float").columns
    pd.testing.assert_frame_equal(actual.rows.drop(columns=floats), expected.rows.drop(columns=floats))
    assert actual.settings == expected.settings
    expected_values = expected.rows[floats].to_numpy()
    distance = abs(actual.rows[floats].to_numpy() - expected_values)
    assert ((distance != distance) == (expected_values != expected_values)).all()  # what is missing, is missing
    return bool(
        (
            distance[expected_values == expected_values]
            <= allowance(expected_values[expected_values == expected_values])
        ).all()
    )


@pytest.mark.slow
def test_results_are_equal_at_any_memory_limit() -> None:
    sizes: list[int] = []
    with tight(None, sizes):
        full = run_small()
    maximum = max(sizes)
    assert maximum >= 16
    for limit in {1, 3, maximum - 1}:
        attempts: list[int] = []
        with tight(limit, attempts):
            second = run_small()
        assert max(attempts) <= limit < maximum
        assert all(is_equal(second[label], full[label]) for label in full)


def test_row_that_does_not_fit_is_an_error() -> None:
    with tight(0, []), pytest.raises(torch.OutOfMemoryError, match="1 rows"):
        run_small()
