"""The instrument on real weights: thirty layers, nine heads, three of keys and values, tied embeddings.

The plain model that it is held against is the same weights on the library's own eager attention, with torch hooks.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from rebinding.models import LoadedModel
from rebinding.surgery import Edit, Read, TorchSurgeon
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded
from tests.close import allowance
from tests.surgery import small_edits

EditSite: TypeAlias = Literal["resid", "z", "q", "k", "v", "mlp_out"]
SITES: tuple[EditSite, ...] = ("resid", "z", "q", "k", "v", "mlp_out")
PLACES = 50


@dataclass(frozen=True)
class Place:
    """Where something is added, and how much of what is there is added on top."""

    site: EditSite
    layer: int
    head: int
    position: int
    seed: int


def places(loaded_model: LoadedModel, length: int) -> list[Place]:
    """Random places, the same in every run; a head of keys and values is a group's."""
    dice, anatomy = random.Random("places"), loaded_model.anatomy
    places = []
    for seed in range(PLACES):
        site = SITES[seed % len(SITES)]
        heads = anatomy.parts[0].n_kv_heads if site in ("k", "v") else anatomy.n_heads
        places.append(
            Place(site, dice.randrange(anatomy.n_layers), dice.randrange(heads), dice.randrange(1, length), seed)
        )
    return places


@pytest.fixture(scope="module")
def plain(smollm2: LoadedModel) -> Any:
    """The same weights on the library's eager attention."""
    model = copy.deepcopy(smollm2.model)
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(scope="module")
def prompts(smollm2: LoadedModel) -> list[Encoded]:
    return smollm2.encoder().encode(design("counterbalanced").prompt(number) for number in range(4))


def test_replay_equals_hooks_at_random_places(smollm2: LoadedModel, plain: Any, prompts: list[Encoded]) -> None:
    """The logits at the readout after an addition of the size of what is there; most must be felt."""
    prompt = prompts[0]
    ids, end = torch.tensor([prompt.ids]), prompt.roles["readout"]
    surgeon = TorchSurgeon(smollm2.model, smollm2.anatomy)
    recording = surgeon.record(ids)
    clean = plain_logits(plain, ids, end)
    n_changed = 0
    for place in places(smollm2, len(prompt)):
        headless = place.site in ("resid", "mlp_out")
        heads = None if headless else [place.head]
        where = small_edits.place(place.site, place.layer, heads)
        read = Read(place.site, at=[place.position], **where)
        width = surgeon.run(recording, [], [read])[0].shape[-1]
        delta = torch.randn(width, generator=torch.Generator().manual_seed(place.seed))
        edit = Edit(place.site, delta, at=[place.position], mode="add", **where)
        actual = surgeon.run(recording, [edit], [Read("logits", at=[end])])[0][0, 0]
        handle = hook(plain, smollm2, place, delta)
        expected = plain_logits(plain, ids, end)
        handle.remove()
        assert float((actual - expected).abs().max()) <= allowance(expected), place
        n_changed += float((expected - clean).abs().max()) > 2 * allowance(expected)
    assert n_changed >= 0.8 * PLACES


@torch.no_grad()
def plain_logits(plain: Any, ids: Tensor, position: int) -> Tensor:
    logits: Tensor = plain(ids, use_cache=False).logits[0, position]  # (vocabulary,)
    return logits


def hook(plain: Any, loaded_model: LoadedModel, place: Place, delta: Tensor) -> RemovableHandle:
    """What adds the vector at a place, written against the library's modules."""
    layer, wide = plain.model.layers[place.layer], loaded_model.anatomy.parts[0].head_dim
    cells = slice(place.head * wide, (place.head + 1) * wide) if delta.numel() == wide else slice(None)

    def changed(value: Tensor) -> Tensor:
        value = value.clone()
        value[0, place.position, cells] += delta
        return value

    if place.site in ("resid", "z"):
        module = layer if place.site == "resid" else layer.self_attn.o_proj
        handle: RemovableHandle = module.register_forward_pre_hook(lambda _, args: (changed(args[0]), *args[1:]))
        return handle
    modules = {"q": layer.self_attn.q_proj, "k": layer.self_attn.k_proj, "v": layer.self_attn.v_proj}
    handle = modules.get(place.site, layer.mlp).register_forward_hook(lambda _, args, out: changed(out))
    return handle


def test_two_surgeons_agree(smollm2: LoadedModel, prompts: list[Encoded]) -> None:
    """The same edits as one trace of nnsight."""
    ids, end = torch.tensor([prompt.ids for prompt in prompts[:2]]), prompts[0].roles["readout"]
    torch_surgeon, nnsight_surgeon = (kind(smollm2.model, smollm2.anatomy) for kind in (TorchSurgeon, NNsightSurgeon))
    wide = smollm2.anatomy.parts[0].head_dim
    dice = torch.Generator().manual_seed(0)
    at = prompts[0].roles["question_box"]
    reads = [Read("logits", at=[end]), Read("pattern", at=[end], head=[(25, 3)])]
    edits = [
        Edit("q", torch.randn(wide, generator=dice), at=[end], head=[(20, 4)], mode="add"),
        Edit("k", torch.randn(wide, generator=dice), at=[at], head=[(12, 1)], mode="add", scope="group"),
        Edit("z", torch.randn(wide, generator=dice), at=[at], head=[(8, 7)]),
    ]
    clean = torch_surgeon.run(torch_surgeon.record(ids), [], reads)
    for edit in edits:
        pairs = zip(
            torch_surgeon.run(torch_surgeon.record(ids), [edit], reads),
            nnsight_surgeon.run(nnsight_surgeon.record(ids), [edit], reads),
            strict=True,
        )
        for (actual, expected), before in zip(pairs, clean, strict=True):
            assert float((actual - expected).abs().max()) <= allowance(expected, floor=1.0)
            assert float((actual - before).abs().max()) > 0
