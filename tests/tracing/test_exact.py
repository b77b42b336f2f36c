"""Tracing equals one hooked forward pass per cell, on every architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rebinding.experiments.tracing import changing, patched_logits, trace
from rebinding.prompts import token_batch
from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.surgery.models import FAMILIES, Family, tiny, tokens
from tests.tracing.naive import final_logits, naive_map, random_pairs

ROUNDING = 2e-5
"""Float32: logits of size 5 after four layers; the largest difference seen in any family is 8e-6."""


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_forward_pass_per_cell(family: Family) -> None:
    model = tiny(family)
    pairs = random_pairs(tokens(family), differing=(4, 8))
    originals, others = (token_batch([getattr(p, side) for p in pairs]) for side in ("original", "counterfactual"))
    layers, positions = range(model.config.get_text_config().num_hidden_layers), range(originals.shape[1])
    want = naive_map(model, originals, others, layers=layers, tokens=positions)  # (prompt, layer, token, vocabulary)
    unpatched = final_logits(model, others)

    surgeon = TorchSurgeon(model, derive(model))
    cells = changing(pairs, layers, positions)
    got, base = patched_logits(surgeon, pairs, cells, layers=layers, tokens=positions)

    wanted = torch.tensor([[*pair.candidates, pair.rival] for pair in pairs])
    want = want.gather(-1, wanted[:, None, None].expand(*want.shape[:3], -1))
    assert (got - want).abs().max() < ROUNDING
    assert (base - unpatched.gather(-1, wanted)).abs().max() < ROUNDING
    moved = (want - base[:, None, None]).abs().amax(-1)
    assert (moved[~cells] < ROUNDING).all(), "a cell that was not run changes something"
    assert (moved[:, 0, [4, 8]] > 100 * ROUNDING).any(), "the patches move nothing, so equality says nothing"


def test_running_the_cells_that_change_nothing_changes_nothing() -> None:
    model = tiny("llama")
    pairs = random_pairs(tokens("llama", n=4), differing=(6,))
    surgeon = TorchSurgeon(model, derive(model))
    sparse, full = (trace(surgeon, pairs, mode="test", run_no_ops=run, progress=False).rows for run in (False, True))
    assert full["ran"].all()
    assert not sparse["ran"].all()
    for name in ("hit", "hit_with_counterfactual", "margin", "counterfactual_margin", "answer_logit"):
        np.testing.assert_allclose(sparse[name].astype(float), full[name].astype(float), atol=ROUNDING)


def test_the_cells_that_run() -> None:
    pairs = random_pairs(tokens("llama", n=2, length=6), differing=(2, 4))
    cells = changing(pairs, [0, 1], range(6))
    assert cells[0].int().tolist() == [[0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert torch.equal(cells[0], cells[1])


def test_some_layers_and_tokens() -> None:
    """A part of the map is the part of the whole map, in any order of layers and tokens, and in blocks."""
    model = tiny("gemma2")
    pairs = random_pairs(tokens("gemma2", n=5), differing=(3,))
    surgeon = TorchSurgeon(model, derive(model))
    whole = trace(surgeon, pairs, mode="test", progress=False).rows
    part = trace(surgeon, pairs, mode="test", layers=[3, 1], tokens=[12, 5], block=2, progress=False).rows
    assert len(part) == 5 * 2 * 2
    both = part.merge(whole, on=["id", "layer", "token"], suffixes=("", "_whole"))
    assert len(both) == len(part)
    np.testing.assert_allclose(both["margin"], both["margin_whole"], atol=ROUNDING)


def test_the_other_surgeon_gives_the_same_map() -> None:
    """Tracing is written against the protocol: full forward passes through nnsight give the same evidence."""
    pairs = random_pairs(tokens("llama", n=2, length=7), differing=(4,))
    model, other = tiny("llama"), tiny("llama")
    surgeons = TorchSurgeon(model, derive(model)), NNsightSurgeon(other, derive(other))
    ours, theirs = (trace(surgeon, pairs, mode="test", progress=False) for surgeon in surgeons)
    np.testing.assert_allclose(ours.rows["margin"], theirs.rows["margin"], atol=ROUNDING)
    assert (ours.rows["hit"] == theirs.rows["hit"]).all()
    assert (ours.settings["surgeon"], theirs.settings["surgeon"]) == ("TorchSurgeon", "NNsightSurgeon")
