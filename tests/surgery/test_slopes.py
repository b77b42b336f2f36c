"""The slope of a score with z equals what a small edit of z does, divided by how small it is."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, TorchSurgeon, derive
from rebinding.surgery.slopes import Receiver, edge_estimates, output_slopes
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


def test_integrated_estimates_are_the_mean_over_starts() -> None:
    """From the prompts' own embeddings they are those without a start; from two starts, the mean of both."""
    model = tiny("llama")
    anatomy, prompts = derive(model), tokens("llama", n=6)
    recording = TorchSurgeon(model, anatomy).record(prompts, keep={"z", "mlp_out"})
    heads = {layer: z.roll(1, dims=0) - z for layer, z in enumerate(recording.sites["z"])}
    mlps = {layer: out.roll(1, dims=0) - out for layer, out in enumerate(recording.sites["mlp_out"])}
    receivers = [Receiver(3, 1, torch.full((6,), 12)), Receiver(2, -1, torch.tensor([4, 5, 6, -1, 4, 5]))]
    run = partial(edge_estimates, model, anatomy, prompts, lambda resid, rows: resid[:, -1].sum(-1), receivers)
    own, other = recording.sites["resid"][0], recording.sites["resid"][0].roll(1, dims=0)
    plain, from_own, from_other, from_both = (
        run(heads, mlps, starts) for starts in ((None,), (own,), (other,), (own, other))
    )
    for key, estimate in plain.items():
        size = float(from_both[key].abs().max())
        assert torch.allclose(estimate, from_own[key], rtol=0, atol=1e-4 * size)
        assert torch.allclose(from_both[key], (estimate + from_other[key]) / 2, rtol=0, atol=1e-4 * size)
    assert not torch.allclose(plain[0, False], from_other[0, False], rtol=0.1)
    assert float(plain[0, True][3, 3].abs().max()) == 0  # no MLP receives in the fourth prompt
