"""Whole experiments where memory runs out, or the clock is set back: the same evidence, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.store import Store
from rebinding.experiments import workbench
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.circuit.request import request_ablation
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.tracing.request import Answered
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.surgery import torch_surgeon
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.close import allowance
from tests.oracles.faults.stores import content


@cache
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


def run_small() -> dict[str, Evidence]:
    """Roles, paths, binding, ability and ablations, of a model that remembers nothing of the time before."""
    bench = Workbench(loaded_model())
    prompts, heads, procedure = bench.prompts, Circuit(build("pointer").circuit), builtin_procedure("published")
    design, conventions = prompts.design("published"), conventions_of_plant(procedure.circuit, "published")
    pairs = draw_noise_pairs(prompts, conventions, 2)
    requests = (
        request_interchange(prompts, heads, design, "pointer", 4, procedure.roles),
        request_ability(prompts, design, 4),
        request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions),
        request_shifts(prompts, heads, "published", "isolated", procedure.binding, n=2, directions=2, draws=1),
        request_ablation(prompts, heads, design, "counterbalanced", n=2, comparison="groups"),
    )
    return {request.label: bench.get(request) for request in requests}


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
def test_evidence_is_equal_at_any_memory_limit() -> None:
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


def test_a_row_that_does_not_fit_is_an_error() -> None:
    with tight(0, []), pytest.raises(torch.OutOfMemoryError, match="1 rows"):
        run_small()


def run_in_blocks(root: Path) -> None:
    """A request of a planted model in three blocks, each a shard."""
    bench = Workbench(loaded_model(), Store(root))
    prompt_set = bench.prompts.draw(bench.prompts.design("published"), range(45), ("tracing", "swap_only"))
    bench.get(Answered(prompt_set, "continuation"))
    assert len(list(Store(root).entries())) == 3


def test_a_clock_that_is_set_back_changes_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back at every look, with the bar that tells the remaining time: the bytes of any other run."""
    run_in_blocks(tmp_path / "whole")
    looks, bar = count(4_000_000_000, -3600), workbench.tqdm
    for name in ("time.time", "tqdm.std.time"):
        monkeypatch.setattr(name, lambda: float(next(looks)))
    monkeypatch.setattr(workbench, "tqdm", lambda **options: bar(**{**options, "disable": False}))
    run_in_blocks(tmp_path / "store")
    assert next(looks) <= 4_000_000_000 - 2 * 3600, "nobody has looked at the clock twice"
    assert content(tmp_path / "store") == content(tmp_path / "whole")
    assert all(entry.written > 0 for entry in Store(tmp_path / "store").entries())
