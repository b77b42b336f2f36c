"""Recordings: what they keep, how many prompts are recorded together, and prompts that begin alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, TorchSurgeon
from rebinding.surgery.memory import CPU_BUDGET, MOST_PROMPTS, PROMPTS, RECORDING, recorded_bytes
from rebinding.surgery.recorder import common_beginning, record
from tests.close import agree, allowance, is_changed
from tests.everyday import sampled
from tests.families.models import USUAL, Family, tokens
from tests.surgery.small_edits import RECORDED_SITES, make_surgeon

LLAMA_PROMPTS = tokens("llama")


def remembering_surgeon(remember: int) -> TorchSurgeon:
    return make_surgeon("llama", remember=remember)


def test_by_default_nothing_is_kept() -> None:
    plain = remembering_surgeon(0)
    assert plain.record(LLAMA_PROMPTS) is not plain.record(LLAMA_PROMPTS)
    assert plain.recordings.bytes() == 0


def test_the_same_prompts_and_sites_are_recorded_once() -> None:
    caching = remembering_surgeon(1 << 30)
    first = caching.record(LLAMA_PROMPTS)
    assert caching.record(LLAMA_PROMPTS.clone()) is first
    assert caching.record(LLAMA_PROMPTS, keep={"z"}) is not first, "other sites are kept"
    assert caching.record(LLAMA_PROMPTS[:2]) is not first, "a part of a batch is another batch"
    changed = LLAMA_PROMPTS.clone()
    changed[0, -1] += 1
    assert caching.record(changed) is not first


def test_the_ones_used_last_stay() -> None:
    size = remembering_surgeon(0).record(LLAMA_PROMPTS).bytes()
    caching, batches = remembering_surgeon(2 * size), [(LLAMA_PROMPTS + n) % 50 for n in range(3)]
    first, second = (caching.record(batch) for batch in batches[:2])
    assert caching.record(batches[0]) is first
    caching.record(batches[2])
    assert caching.recordings.bytes() <= 2 * size
    assert caching.record(batches[0]) is first
    assert caching.record(batches[1]) is not second, "it was used least recently, and had to go"
    small = remembering_surgeon(size - 1)
    assert small.record(LLAMA_PROMPTS) is not small.record(LLAMA_PROMPTS), "what does not fit is given and not kept"


def test_a_run_leaves_what_is_kept_alone() -> None:
    caching, read = remembering_surgeon(1 << 30), [Read("logits", at=[12])]
    recording = caching.record(LLAMA_PROMPTS)
    before = caching.run(recording, [], read)[0].clone()
    value = torch.ones(1, 1, 1, recording.sites["resid"][0].shape[-1])[0]
    caching.run(recording, [Edit("resid", value, at=[3], layer=1)], read)
    assert torch.equal(caching.run(caching.record(LLAMA_PROMPTS), [], read)[0], before)


COMMON = 6
"""Tokens in common; more than most windows of the tiny models, and less than half of a prompt."""


def prompts_with_common_start(family: Family, n: int = 5, common: int = COMMON) -> Tensor:
    """Prompts that begin with the same tokens and part at one: (prompt, token)."""
    prompts = tokens(family, n)
    prompts[:, :common] = prompts[0, :common]
    prompts[:, common] = torch.arange(3, 3 + n)
    return prompts


@pytest.mark.parametrize("family", sampled(USUAL, "llama", "gemma3"))
def test_a_common_beginning_changes_nothing(family: Family) -> None:
    """Against recordings of one prompt each, which have nothing to share; two batches, so that both continue it."""
    surgeon, prompts = make_surgeon(family), prompts_with_common_start(family)
    parts = surgeon.model, surgeon.anatomy
    batch = record(*parts, prompts, keep=RECORDED_SITES, rows=3)
    single = [record(*parts, prompt[None], keep=RECORDED_SITES) for prompt in prompts]
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


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_mean_ablated_runs_fix_later_tokens(family: Family) -> None:
    """Held values differ from token to token, so a window that took the wrong ones would show."""
    surgeon, prompts = make_surgeon(family), prompts_with_common_start(family)
    anatomy = surgeon.anatomy
    shape = (anatomy.n_heads, prompts.shape[1], anatomy.parts[0].head_dim)
    fixed_z = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(anatomy.n_layers)]
    batch = surgeon.record_mean_ablated(prompts, fixed_z)
    for number, prompt in enumerate(prompts):
        single = surgeon.record_mean_ablated(prompt[None], fixed_z)
        assert agree(batch.sites["resid"][-1][number], single.sites["resid"][-1][0])
        assert torch.equal(batch.sites["z"][2][number], fixed_z[2])


def test_only_the_first_prompt_is_computed_from_its_beginning() -> None:
    surgeon, prompts = make_surgeon("llama"), prompts_with_common_start("llama")
    model, anatomy, calls = surgeon.model, surgeon.anatomy, []

    def count(module: Any, args: tuple[Tensor, ...]) -> None:
        calls.append(tuple(args[0].shape[:2]))

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


LONG = 10_000
"""Tokens of a prompt of which a hundred take about as much as a batch on a CPU may."""


@pytest.mark.parametrize("family", ["llama", "gemma3_multimodal"])
def test_the_size_of_a_recording_is_known_beforehand(family: Family) -> None:
    surgeon, prompts = make_surgeon(family), tokens(family)
    expected = 3 * recorded_bytes(surgeon.model, surgeon.anatomy, prompts.shape[1])
    assert surgeon.record(prompts, keep={"z"}).bytes() == expected


def surgeon_with(budget: list[int]) -> TorchSurgeon:
    """A surgeon that has as much memory as `budget` says at the time."""
    return make_surgeon("llama", budget=lambda: budget[0])


def test_a_cpu_takes_few() -> None:
    assert make_surgeon("llama").prompts_at_once(1) == PROMPTS
    assert surgeon_with([CPU_BUDGET]).prompts_at_once(1) == PROMPTS


def test_a_device_takes_what_its_memory_allows() -> None:
    surgeon = surgeon_with([40 * CPU_BUDGET])
    one = recorded_bytes(surgeon.model, surgeon.anatomy, LONG)
    assert surgeon.prompts_at_once(LONG) == int(40 * CPU_BUDGET * RECORDING) // one
    assert PROMPTS < surgeon.prompts_at_once(LONG) < MOST_PROMPTS
    assert surgeon.prompts_at_once(1) == MOST_PROMPTS
    assert surgeon.prompts_at_once(100 * LONG) == PROMPTS


def test_the_number_stays_until_half_of_it_fits() -> None:
    """So recordings are shared although the free memory changes all the time."""
    budget = [40 * CPU_BUDGET]
    surgeon = surgeon_with(budget)
    first = surgeon.prompts_at_once(LONG)
    for share in (0.6, 2.0):
        budget[0] = int(share * 40 * CPU_BUDGET)
        assert surgeon.prompts_at_once(LONG) == first
    budget[0] = int(0.4 * 40 * CPU_BUDGET)
    assert surgeon.prompts_at_once(LONG) == surgeon_with(budget).prompts_at_once(LONG) < first
