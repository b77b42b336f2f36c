"""Prompts that begin alike are recorded from where they part; every kept value is that of the whole pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.recorder import common_beginning, record
from tests.close import agree, allowance, felt
from tests.surgery.edited import KEPT
from tests.surgery.models import FAMILIES, Family, tiny, tokens

COMMON = 6
"""Tokens in common; more than most windows of the tiny models, and less than half of a prompt."""


def prompts_with_common_start(family: Family, n: int = 5, common: int = COMMON) -> Tensor:
    """Prompts that begin with the same tokens and part at one: (prompt, token)."""
    prompts = tokens(family, n)
    prompts[:, :common] = prompts[0, :common]
    prompts[:, common] = torch.arange(3, 3 + n)
    return prompts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_common_beginning_changes_nothing(family: Family) -> None:
    """Against recordings of one prompt each, which have nothing to share; two batches, so that both continue it."""
    model, prompts = tiny(family), prompts_with_common_start(family)
    TorchSurgeon(model, derive(model))
    together = record(model, derive(model), prompts, keep=KEPT, rows=3)
    alone = [record(model, derive(model), prompt[None], keep=KEPT) for prompt in prompts]
    assert set(together.sites) == set(alone[0].sites)
    for site, layers in together.sites.items():
        for layer, value in enumerate(layers):
            expected = torch.cat([recording.sites[site][layer] for recording in alone])
            assert value.shape == expected.shape
            seen = expected > torch.finfo(expected.dtype).min / 2  # a masked score is the same number everywhere
            assert torch.equal(seen, value > torch.finfo(expected.dtype).min / 2)
            value, expected = value.where(seen, 0.0), expected.where(seen, 0.0)
            # as large as the residual, from which a site is computed: scores are sums that cancel
            slack = allowance(expected, together.sites["resid"][layer])
            assert (value - expected).abs().max() <= slack, (site, layer)
            assert felt(value[:1].expand_as(value), expected), "the prompts would all be the first one"
    for actual, expected in zip(together.calls, alone[0].calls, strict=True):
        tensors = [key for key, value in expected.items() if isinstance(value, Tensor)]
        assert "attention_mask" in tensors
        assert all(torch.equal(actual[key], expected[key]) for key in tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_held_runs_hold_the_tokens_after_it(family: Family) -> None:
    """Held values differ from token to token, so a window that took the wrong ones would show."""
    model, prompts = tiny(family), prompts_with_common_start(family)
    surgeon = TorchSurgeon(model, derive(model))
    anatomy = surgeon.anatomy
    shape = (anatomy.n_heads, prompts.shape[1], anatomy.head_dim)
    fixed_z = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(anatomy.n_layers)]
    together = surgeon.record_mean_ablated(prompts, fixed_z)
    for number, prompt in enumerate(prompts):
        alone = surgeon.record_mean_ablated(prompt[None], fixed_z)
        assert agree(together.sites["resid"][-1][number], alone.sites["resid"][-1][0])
        assert torch.equal(together.sites["z"][2][number], fixed_z[2])


def test_only_the_first_prompt_is_computed_from_its_beginning() -> None:
    model, prompts = tiny("llama"), prompts_with_common_start("llama")
    anatomy, seen = derive(model), []

    def count(module: Any, args: tuple[Tensor, ...]) -> None:
        seen.append(tuple(args[0].shape[:2]))

    TorchSurgeon(model, anatomy)
    handle = anatomy.layer_modules(model)[1].get_submodule(anatomy.mlp).register_forward_pre_hook(count)
    record(model, anatomy, prompts)
    handle.remove()
    assert seen == [(1, 13), (4, 13 - COMMON)]


def test_the_beginning_ends_where_two_prompts_differ() -> None:
    prompts = prompts_with_common_start("llama", common=4)
    assert common_beginning(prompts) == 4
    prompts[3, 2] += 1
    assert common_beginning(prompts) == 2
    prompts[4, 0] += 1
    assert common_beginning(prompts) == 0
    assert common_beginning(prompts[:1]) == 0
    assert common_beginning(prompts[:1].repeat(3, 1)) == 12, "one token is left to compute"
