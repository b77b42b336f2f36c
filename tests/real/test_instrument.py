"""The instrument on real weights: thirty layers, nine heads, three of keys and values, tied embeddings.

The plain model that it is held against is the same weights on the library's own eager attention, with torch hooks.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from rebinding.experiments.circuit.paths import PAPER, NoisePairs, PathSettings, score_stage
from rebinding.subjects import Subject
from rebinding.surgery import Edit, Read, TorchSurgeon
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.world.designs import design
from rebinding.world.prompts import Encoded
from tests.circuit.naive import Naive, hooked, stage_probabilities
from tests.close import allowance

Where: TypeAlias = Literal["resid", "z", "q", "k", "v", "mlp_out"]
WHERE: tuple[Where, ...] = ("resid", "z", "q", "k", "v", "mlp_out")
PLACES, SENDERS = 50, 20
RECEIVERS = [(12, 0), (20, 4), (27, 8)]
"""Stand-ins for a group A in three parts of the model: what is compared is arithmetic, for which any heads will do."""


@dataclass(frozen=True)
class Place:
    """Where something is added, and how much of what is there is added on top."""

    site: Where
    layer: int
    head: int
    position: int
    seed: int


def places(subject: Subject, length: int) -> list[Place]:
    """Random places, the same in every run; a head of keys and values is a group's."""
    dice, anatomy = random.Random("places"), subject.anatomy
    found = []
    for seed in range(PLACES):
        site = WHERE[seed % len(WHERE)]
        heads = anatomy.n_kv_heads if site in ("k", "v") else anatomy.n_heads
        found.append(
            Place(site, dice.randrange(anatomy.n_layers), dice.randrange(heads), dice.randrange(1, length), seed)
        )
    return found


@pytest.fixture(scope="module")
def plain(smollm2: Subject) -> Any:
    """The same weights on the library's eager attention."""
    model = copy.deepcopy(smollm2.model)
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(scope="module")
def prompts(smollm2: Subject) -> list[Encoded]:
    return smollm2.encoder().encode(design("counterbalanced").prompt(number) for number in range(4))


def test_replay_equals_hooks_at_random_places(smollm2: Subject, plain: Any, prompts: list[Encoded]) -> None:
    """The logits at the readout after an addition of the size of what is there; most must be felt."""
    prompt = prompts[0]
    ids, end = torch.tensor([prompt.ids]), prompt.roles["readout"]
    surgeon = TorchSurgeon(smollm2.model, smollm2.anatomy)
    recording = surgeon.record(ids)
    clean = plain_logits(plain, ids, end)
    felt = 0
    for place in places(smollm2, len(prompt)):
        headless = place.site in ("resid", "mlp_out")
        heads = None if headless else [place.head]
        scope: Any = "group" if place.site in ("k", "v") else None
        read = Read(place.site, place.layer, positions=[place.position], heads=None if headless else [0])
        width = surgeon.run(recording, [], [read])[0].shape[-1]
        added = torch.randn(width, generator=torch.Generator().manual_seed(place.seed))
        edit = Edit(place.site, place.layer, added, positions=[place.position], heads=heads, mode="add", scope=scope)
        got = surgeon.run(recording, [edit], [Read("logits", positions=[end])])[0][0, 0]
        with hooked([hook(plain, smollm2, place, added)]):
            want = plain_logits(plain, ids, end)
        assert float((got - want).abs().max()) <= allowance(want), place
        felt += float((want - clean).abs().max()) > 2 * allowance(want)
    assert felt >= 0.8 * PLACES


@torch.no_grad()
def plain_logits(plain: Any, ids: Tensor, position: int) -> Tensor:
    logits: Tensor = plain(ids, use_cache=False).logits[0, position]  # (vocabulary,)
    return logits


def hook(plain: Any, subject: Subject, place: Place, added: Tensor) -> tuple[nn.Module, str, Callable[..., Any]]:
    """What adds the vector at a place, written against the library's modules."""
    layer, wide = plain.model.layers[place.layer], subject.anatomy.head_dim
    cells = slice(place.head * wide, (place.head + 1) * wide) if added.numel() == wide else slice(None)

    def changed(value: Tensor) -> Tensor:
        value = value.clone()
        value[0, place.position, cells] += added
        return value

    if place.site in ("resid", "z"):
        module = layer if place.site == "resid" else layer.self_attn.o_proj
        return module, "in", lambda _, args: (changed(args[0]), *args[1:])
    modules = {"q": layer.self_attn.q_proj, "k": layer.self_attn.k_proj, "v": layer.self_attn.v_proj}
    return modules.get(place.site, layer.mlp), "out", lambda _, args, out: changed(out)


def test_path_patching_equals_the_naive_schedule(smollm2: Subject, plain: Any) -> None:
    """Stage B, twenty senders: the probability of the answer after each, against one full forward after another."""
    pair = design("published").noise(0, "rotation")
    clean, noise = smollm2.encoder().encode([pair.original, pair.counterfactual])
    label = smollm2.encoder().answer_token(pair.original.answer)
    story = pair.original.story
    rivals = [smollm2.encoder().answer_token(word) for word in story.objects if word != pair.original.answer]
    scene = NoisePairs((0,), (clean,), (noise,), torch.tensor([label]), torch.tensor([rivals]))
    surgeon = TorchSurgeon(smollm2.model, smollm2.anatomy)
    evidence = score_stage(surgeon, scene, PAPER[1], RECEIVERS, settings=PathSettings("all", "group"))
    dice, anatomy = random.Random("senders"), smollm2.anatomy
    senders = [(dice.randrange(RECEIVERS[-1][0]), dice.randrange(anatomy.n_heads)) for _ in range(SENDERS)]
    naive = Naive(plain, plain.model.layers, anatomy.n_heads, anatomy.head_dim)
    want = stage_probabilities(
        naive, clean, noise, label, PAPER[1], RECEIVERS, frozen=True, senders=senders, group=anatomy.group
    )
    rows = evidence.rows.set_index(["layer", "head"])
    largest = float(plain_logits(plain, torch.tensor([clean.ids]), clean.roles["readout"]).abs().max())
    tolerance = allowance(torch.tensor(largest))  # of a logit, hence of a probability's logarithm
    assert [float(rows.loc[one, "p_patch"]) for one in senders] == pytest.approx(list(want), rel=tolerance)
    moved = [abs(one / float(rows.iloc[0]["p_orig"]) - 1) for one in want]
    assert max(moved) > tolerance  # so that the clean run in place of one of them would be noticed


def test_two_surgeons_agree(smollm2: Subject, prompts: list[Encoded]) -> None:
    """The same edits as one trace of nnsight."""
    ids, end = torch.tensor([one.ids for one in prompts[:2]]), prompts[0].roles["readout"]
    ours, other = (kind(smollm2.model, smollm2.anatomy) for kind in (TorchSurgeon, NNsightSurgeon))
    wide = smollm2.anatomy.head_dim
    dice = torch.Generator().manual_seed(0)
    at = prompts[0].roles["question_box"]
    reads = [Read("logits", positions=[end]), Read("pattern", 25, positions=[end], heads=[3])]
    edits = [
        Edit("q", 20, torch.randn(wide, generator=dice), positions=[end], heads=[4], mode="add"),
        Edit("k", 12, torch.randn(wide, generator=dice), positions=[at], heads=[1], mode="add", scope="group"),
        Edit("z", 8, torch.randn(wide, generator=dice), positions=[at], heads=[7]),
    ]
    clean = ours.run(ours.record(ids), [], reads)
    for edit in edits:
        pairs = zip(ours.run(ours.record(ids), [edit], reads), other.run(other.record(ids), [edit], reads), strict=True)
        for (got, want), before in zip(pairs, clean, strict=True):
            assert float((got - want).abs().max()) <= allowance(want, least=1.0)
            assert float((got - before).abs().max()) > 0
