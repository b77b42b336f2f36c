"""Prompts that begin alike are recorded from where they part; every kept value is that of the whole pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.recorder import common_beginning, record
from tests.close import agree, allowance, is_changed
from tests.surgery.models import FAMILIES, Family, tiny, tokens
from tests.surgery.small_edits import RECORDED_SITES

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
    batch = record(model, derive(model), prompts, keep=RECORDED_SITES, rows=3)
    single = [record(model, derive(model), prompt[None], keep=RECORDED_SITES) for prompt in prompts]
    assert set(batch.sites) == set(single[0].sites)
    for site, layers in batch.sites.items():
        for layer, value in enumerate(layers):
            expected = torch.cat([recording.sites[site][layer] for recording in single])
            assert value.shape == expected.shape
            is_visible = expected > torch.finfo(expected.dtype).min / 2  # a masked score is the same number everywhere
            assert torch.equal(is_visible, value > torch.finfo(expected.dtype).min / 2)
            value, expected = value.where(is_visible, 0.0), expected.where(is_visible, 0.0)
            # as large as the residual, from which a site is computed: scores are sums that cancel
            slack = allowance(expected, batch.sites["resid"][layer])
            assert (value - expected).abs().max() <= slack, (site, layer)
            assert is_changed(value[:1].expand_as(value), expected), "the prompts would all be the first one"
    for actual, expected in zip(batch.calls, single[0].calls, strict=True):
        tensors = [key for key, value in expected.items() if isinstance(value, Tensor)]
        assert "attention_mask" in tensors
        assert all(torch.equal(actual[key], expected[key]) for key in tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_ablated_runs_fix_later_tokens(family: Family) -> None:
    """Held values differ from token to token, so a window that took the wrong ones would show."""
    model, prompts = tiny(family), prompts_with_common_start(family)
    surgeon = TorchSurgeon(model, derive(model))
    anatomy = surgeon.anatomy
    shape = (anatomy.n_heads, prompts.shape[1], anatomy.parts[0].head_dim)
    fixed_z = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(anatomy.n_layers)]
    batch = surgeon.record_mean_ablated(prompts, fixed_z)
    for number, prompt in enumerate(prompts):
        single = surgeon.record_mean_ablated(prompt[None], fixed_z)
        assert agree(batch.sites["resid"][-1][number], single.sites["resid"][-1][0])
        assert torch.equal(batch.sites["z"][2][number], fixed_z[2])


def test_only_the_first_prompt_is_computed_from_its_beginning() -> None:
    model, prompts = tiny("llama"), prompts_with_common_start("llama")
    anatomy, calls = derive(model), []

    def count(module: Any, args: tuple[Tensor, ...]) -> None:
        calls.append(tuple(args[0].shape[:2]))

    TorchSurgeon(model, anatomy)
    handle = anatomy.layer_modules(model)[1].get_submodule(anatomy.parts[1].mlp[0]).register_forward_pre_hook(count)
    record(model, anatomy, prompts)
    handle.remove()
    assert calls == [(1, 13), (4, 13 - COMMON)]


def test_the_beginning_ends_where_two_prompts_differ() -> None:
    prompts = prompts_with_common_start("llama", common=4)
    assert common_beginning(prompts) == 4
    prompts[3, 2] += 1
    assert common_beginning(prompts) == 2
    prompts[4, 0] += 1
    assert common_beginning(prompts) == 0
    assert common_beginning(prompts[:1]) == 0
    assert common_beginning(prompts[:1].repeat(3, 1)) == 12, "one token is left to compute"
