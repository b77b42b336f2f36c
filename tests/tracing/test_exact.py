"""Tracing equals one hooked forward pass per cell, on every architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rebinding.experiments.tokens import token_batch
from rebinding.experiments.tracing.maps import changing, patched_logits, trace
from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.close import allowance
from tests.surgery.models import FAMILIES, Family, tiny, tokens
from tests.tracing.naive import final_logits, naive_map, random_pairs


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
    patched = patched_logits(surgeon, pairs, cells, layers=layers, tokens=positions)

    wanted = torch.tensor([[*pair.candidates, pair.rival] for pair in pairs])
    want = want.gather(-1, wanted[:, None, None].expand(*want.shape[:3], -1))
    rounding = allowance(unpatched)
    assert (patched.logits - want).abs().max() < rounding
    assert (patched.base - unpatched.gather(-1, wanted)).abs().max() < rounding
    moved = (want - patched.base[:, None, None]).abs().amax(-1)
    assert ((patched.moved == 0) | cells).all(), "a cell that was not run would have been given something"
    assert (moved[~cells] < rounding).all(), "a cell that was not run changes something"
    assert moved[:, 0, [4, 8]].max() > 100 * rounding, "the patches move nothing, so equality says nothing"


def test_running_the_cells_that_change_nothing_changes_nothing() -> None:
    model = tiny("llama")
    pairs = random_pairs(tokens("llama", n=4), differing=(6,))
    surgeon = TorchSurgeon(model, derive(model))
    sparse, full = (trace(surgeon, pairs, mode="test", run_no_ops=run, progress=False).rows for run in (False, True))
    assert full["ran"].all()
    assert not sparse["ran"].all()
    rounding = 2 * allowance(full["answer_logit"], least=1.0)  # a margin is a difference of two
    for name in ("hit", "hit_with_counterfactual", "margin", "counterfactual_margin", "answer_logit"):
        np.testing.assert_allclose(sparse[name].astype(float), full[name].astype(float), rtol=0, atol=rounding)


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
    both = part.merge(whole, on=["prompt", "layer", "token"], suffixes=("", "_whole"))
    assert len(both) == len(part)
    np.testing.assert_allclose(both["margin"], both["margin_whole"], rtol=0, atol=2 * allowance(whole["answer_logit"]))


def test_the_other_surgeon_gives_the_same_map() -> None:
    """Tracing is written against the protocol: full forward passes through nnsight give the same evidence."""
    pairs = random_pairs(tokens("llama", n=2, length=7), differing=(4,))
    model, other = tiny("llama"), tiny("llama")
    surgeons = TorchSurgeon(model, derive(model)), NNsightSurgeon(other, derive(other))
    ours, theirs = (trace(surgeon, pairs, mode="test", progress=False) for surgeon in surgeons)
    rounding = 2 * allowance(ours.rows["answer_logit"])  # a margin is a difference of two
    np.testing.assert_allclose(ours.rows["margin"], theirs.rows["margin"], rtol=0, atol=rounding)
    clear = ours.rows["margin"].abs() > rounding
    assert clear.mean() > 0.9, "nearly every hit is no matter of rounding"
    assert (ours.rows["hit"] == theirs.rows["hit"])[clear].all()
    assert (ours.settings["surgeon"], theirs.settings["surgeon"]) == ("TorchSurgeon", "NNsightSurgeon")
