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
    keeping = surgeon(1 << 30)
    first = keeping.record(PROMPTS)
    assert keeping.record(PROMPTS.clone()) is first
    assert keeping.record(PROMPTS, keep={"z"}) is not first, "other sites are kept"
    assert keeping.record(PROMPTS[:2]) is not first, "a part of a batch is another batch"
    other = PROMPTS.clone()
    other[0, -1] += 1
    assert keeping.record(other) is not first


def test_the_ones_used_last_stay() -> None:
    size = surgeon(0).record(PROMPTS).bytes()
    keeping, batches = surgeon(2 * size), [(PROMPTS + n) % 50 for n in range(3)]
    first, second = (keeping.record(batch) for batch in batches[:2])
    assert keeping.record(batches[0]) is first
    keeping.record(batches[2])
    assert keeping.recordings.bytes() <= 2 * size
    assert keeping.record(batches[0]) is first
    assert keeping.record(batches[1]) is not second, "it was used least recently, and had to go"
    small = surgeon(size - 1)
    assert small.record(PROMPTS) is not small.record(PROMPTS), "what does not fit is given and not kept"


def test_a_run_leaves_what_is_kept_alone() -> None:
    keeping, read = surgeon(1 << 30), [Read("logits", positions=[12])]
    recording = keeping.record(PROMPTS)
    before = keeping.run(recording, [], read)[0].clone()
    value = torch.ones(1, 1, 1, recording.sites["resid"][0].shape[-1])[0]
    keeping.run(recording, [Edit("resid", 1, value, positions=[3])], read)
    assert torch.equal(keeping.run(keeping.record(PROMPTS), [], read)[0], before)
