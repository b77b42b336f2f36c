"""The slope of a score with z equals what a small edit of z does, divided by how small it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, TorchSurgeon, derive
from rebinding.surgery.slopes import output_slopes
from tests.everyday import sampled
from tests.families.models import USUAL, Family, tiny, tokens

STEP = 0.03
ROUNDED = 64 * torch.finfo(torch.float32).eps / STEP
"""Norms and softmax compute in float32 whatever the model is in; a difference over `STEP` shows their rounding: of its
two sides, in four layers, of a softmax and of norms, four units in the last place each."""
CUBIC = 0.01
"""Of a symmetric difference what is left is of the third order: STEP squared, times derivatives of some ten. It is no
share of the slope itself, which may be small where the score is much curved, so it is one of the larger slope."""


@pytest.mark.parametrize("family", sampled(USUAL, "mistral", "gemma3"))
def test_equals_a_small_edit(family: Family) -> None:
    """At three layers, heads and tokens of two prompts, for a score at the last token."""
    model = tiny(family).double()
    anatomy, prompts = derive(model), tokens(family, n=2)
    surgeon, n = TorchSurgeon(model, anatomy), anatomy.n_layers
    width = model.get_input_embeddings().weight.shape[1]
    toward = torch.randn(width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # (hidden,)

    def score(resid: Tensor, rows: Tensor) -> Tensor:
        return torch.tanh(resid[:, -1] / 3) @ toward

    actual, _ = output_slopes(model, anatomy, prompts, score, rows=1)
    recording = surgeon.record(prompts, keep={"z"})
    read = Read("resid", at=torch.full((1, 1), prompts.shape[1] - 1), layer=n)
    way = torch.randn(anatomy.parts[0].head_dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    last = prompts.shape[1] - 1
    for layer, head, token in ((0, 1, last - 3), (1, 0, last), (n - 2, anatomy.n_heads - 1, last - 1)):
        sides = []
        for sign in (1.0, -1.0):
            edit = Edit("z", sign * STEP * way, at=torch.tensor([[token]]), head=[(layer, head)], mode="add")
            (resid,) = surgeon.run(recording, [edit], [read])
            sides.append(score(resid, torch.arange(2)))
        measured = (sides[0] - sides[1]) / (2 * STEP)  # (prompt,)
        slope = actual[layer][:, head, token] @ way  # (prompt,)
        assert float(measured.abs().max()) > 20 * ROUNDED
        assert (slope - measured).abs().max() <= ROUNDED + CUBIC * measured.abs().max()


def test_slopes_leave_no_hooks_behind() -> None:
    """No hook, no gradient in the weights: what is run afterwards is what was run before."""
    model = tiny("llama")
    prompts = tokens("llama", n=2)
    before = model(prompts).logits
    output_slopes(model, derive(model), prompts, lambda resid, rows: resid[:, -1].sum(-1))
    assert torch.equal(model(prompts).logits, before)
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
