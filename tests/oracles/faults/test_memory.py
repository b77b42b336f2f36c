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


def found() -> dict[str, Evidence]:
    """Roles, paths, binding, ability and ablations, of a model that remembers nothing of the time before."""
    told, requests = small_run.plan()
    prompts = told.prompts
    bench = Workbench(small_run.loaded_model(), None, prompts=prompts)
    heads = Circuit(build("pointer").circuit)
    ablated = request_ablation(prompts, heads, prompts.design("published"), "counterbalanced", n=2, beside="groups")
    return {one.label: bench.get(one) for one in (*requests, ablated)}


@contextmanager
def tight(limit: int | None, sizes: list[int]) -> Iterator[None]:
    """A device on which more rows than `limit` do not fit; `sizes` gets those of the batches that do."""

    def watched(run: Callable[..., Any], rows: Callable[..., int]) -> Callable[..., Any]:
        def tried(*given: Any, **named: Any) -> Any:
            if limit is not None and rows(*given) > limit:
                raise torch.OutOfMemoryError(f"pretend: {rows(*given)} rows")
            sizes.append(rows(*given))
            return run(*given, **named)

        return tried

    with pytest.MonkeyPatch.context() as patch:
        batch, held = TorchSurgeon._run_batch, torch_surgeon.run_mean_ablated
        patch.setattr(TorchSurgeon, "_run_batch", watched(batch, lambda surgeon, batch, *rest: batch.rows.numel()))
        patch.setattr(torch_surgeon, "run_mean_ablated", watched(held, lambda *given: given[4].numel()))
        yield


def same(got: Evidence, want: Evidence) -> bool:
    """The same rows: numbers up to the rounding of sums taken in another order, everything else to the letter."""
    floats = want.rows.select_dtypes("float").columns
    pd.testing.assert_frame_equal(got.rows.drop(columns=floats), want.rows.drop(columns=floats))
    assert got.settings == want.settings
    there = want.rows[floats].to_numpy()
    away = abs(got.rows[floats].to_numpy() - there)
    assert ((away != away) == (there != there)).all()  # what is missing, is missing
    return bool((away[there == there] <= allowance(there[there == there])).all())


@pytest.mark.slow
def test_at_any_size() -> None:
    sizes: list[int] = []
    with tight(None, sizes):
        whole = found()
    most = max(sizes)
    assert most >= 16
    for limit in {1, 3, most - 1}:
        tried: list[int] = []
        with tight(limit, tried):
            again = found()
        assert max(tried) <= limit < most
        assert all(same(again[label], whole[label]) for label in whole)


def test_one_row_that_does_not_fit_is_an_error() -> None:
    with tight(0, []), pytest.raises(torch.OutOfMemoryError, match="1 rows"):
        found()
