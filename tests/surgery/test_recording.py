"""Recordings that are asked for again are given again, whole, and never more of them than allowed."""

from __future__ import annotations

import torch

from rebinding.surgery import Edit, Read, TorchSurgeon, derive
from tests.surgery.models import tiny, tokens

PROMPTS = tokens("llama")


def surgeon(remember: int) -> TorchSurgeon:
    model = tiny("llama")
    return TorchSurgeon(model, derive(model), remember=remember)


def test_by_default_nothing_is_kept() -> None:
    plain = surgeon(0)
    assert plain.record(PROMPTS) is not plain.record(PROMPTS)
    assert plain.recordings.bytes() == 0


def test_the_same_prompts_and_sites_are_recorded_once() -> None:
    caching = surgeon(1 << 30)
    first = caching.record(PROMPTS)
    assert caching.record(PROMPTS.clone()) is first
    assert caching.record(PROMPTS, keep={"z"}) is not first, "other sites are kept"
    assert caching.record(PROMPTS[:2]) is not first, "a part of a batch is another batch"
    changed = PROMPTS.clone()
    changed[0, -1] += 1
    assert caching.record(changed) is not first


def test_the_ones_used_last_stay() -> None:
    size = surgeon(0).record(PROMPTS).bytes()
    caching, batches = surgeon(2 * size), [(PROMPTS + n) % 50 for n in range(3)]
    first, second = (caching.record(batch) for batch in batches[:2])
    assert caching.record(batches[0]) is first
    caching.record(batches[2])
    assert caching.recordings.bytes() <= 2 * size
    assert caching.record(batches[0]) is first
    assert caching.record(batches[1]) is not second, "it was used least recently, and had to go"
    small = surgeon(size - 1)
    assert small.record(PROMPTS) is not small.record(PROMPTS), "what does not fit is given and not kept"


def test_a_run_leaves_what_is_kept_alone() -> None:
    caching, read = surgeon(1 << 30), [Read("logits", at=[12])]
    recording = caching.record(PROMPTS)
    before = caching.run(recording, [], read)[0].clone()
    value = torch.ones(1, 1, 1, recording.sites["resid"][0].shape[-1])[0]
    caching.run(recording, [Edit("resid", value, at=[3], layer=1)], read)
    assert torch.equal(caching.run(caching.record(PROMPTS), [], read)[0], before)
