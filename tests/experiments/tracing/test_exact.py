"""Which cells of a map are run, and what a part of a map is.

Its numbers are compared with full forwards in `tests/oracles/by_hand` and `tests/reference/test_exp1.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rebinding.experiments.tracing.maps import changing, patched_logits, trace
from rebinding.surgery import TorchSurgeon, derive
from tests.close import allowance
from tests.experiments.tracing.naive import random_pairs
from tests.surgery.models import tiny, tokens


def test_running_noop_cells_changes_nothing() -> None:
    model = tiny("llama")
    pairs = random_pairs(tokens("llama", n=4), differing=(6,))
    surgeon = TorchSurgeon(model, derive(model))
    layers, every_token = range(surgeon.anatomy.n_layers), range(len(pairs[0].original))
    sparse = changing(pairs, layers, every_token)
    assert not sparse.all()
    cells = (sparse, torch.ones_like(sparse))
    run, run_all = (patched_logits(surgeon, pairs, part, layers=layers, tokens=every_token).logits for part in cells)
    torch.testing.assert_close(run, run_all, rtol=0, atol=2 * allowance(run_all.numpy(), floor=1.0))


def test_the_cells_that_run() -> None:
    pairs = random_pairs(tokens("llama", n=2, length=6), differing=(2, 4))
    cells = changing(pairs, [0, 1], range(6))
    assert cells[0].int().tolist() == [[0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert torch.equal(cells[0], cells[1])


def test_selected_layers_and_tokens_equal_full_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of some layers and tokens equals the same cells of the full map, in any order, and in blocks."""
    model = tiny("gemma2")
    pairs = random_pairs(tokens("gemma2", n=5), differing=(3,))
    surgeon = TorchSurgeon(model, derive(model))
    full = trace(surgeon, pairs, mode="test").rows
    monkeypatch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: 2)
    part = trace(surgeon, pairs, mode="test", layers=[3, 1], tokens=[12, 5]).rows
    assert len(part) == 5 * 2 * 2
    merged = part.merge(full, on=["prompt", "layer", "token"], suffixes=("", "_whole"))
    assert len(merged) == len(part)
    np.testing.assert_allclose(
        merged["margin"], merged["margin_whole"], rtol=0, atol=2 * allowance(full["answer_logit"])
    )
