"""A step of the search equals full forwards with hooks, sender by sender; skipped senders have no effect."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.pairs import SearchPairs, record_pairs, recorded_receiver
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import (
    EDGE_SHARE,
    ESTIMATE_ERROR,
    LARGE,
    NEGLIGIBLE,
    MeasuredSteps,
    Search,
    direct_effect,
    effect_via_receivers,
)
from rebinding.experiments.search.summary import family
from rebinding.paper.circuit import MLP
from rebinding.surgery import Edit, Read, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.receivers import receiver_head
from rebinding.surgery.slopes import READINGS
from rebinding.task.prompts import Encoder
from tests.close import MIN_CHANGE_SHARE, agree, allowance, is_changed
from tests.everyday import sampled
from tests.experiments.setup import fake_prompts, noise_pairs
from tests.families.models import USUAL, Family, tiny, tokens
from tests.models.census import build
from tests.planted.runs import plant
from tests.reference.naive.edits import head_value, logits_of_changed_receivers, sender_puts
from tests.reference.naive.plain_model import Plain

PLACES = (*(f"token {at}" for at in range(12)), "readout")
MATCH = torch.tensor([[0, 1, 2, 6, 7, 5, 3, 4, 8, 9, 10, 11, 12], list(range(13))])
RECEIVERS = [Node(3, 2, "readout"), Node(2, 5, "token 9"), Node(3, 0, "token 9")]
ALL = SearchSettings(min_attention=0.0, screen="none")


def make_pairs(family: Family) -> SearchPairs:
    """Two pairs of random prompts that begin alike."""
    ids = tokens(family, n=4)
    ids[2:, :2] = ids[:2, :2]
    roles = {name: at for at, name in enumerate(PLACES)}
    clean, noise = (fake_prompts(part, roles) for part in (ids[:2], ids[2:]))
    answers = torch.tensor([[11, 50, 51], [50, 7, 8]])
    no_functions = ((None,) * 13,) * 2
    return SearchPairs((7, 8), tuple(clean), tuple(noise), answers, MATCH, torch.tensor([2, 2]), PLACES, no_functions)


@pytest.mark.parametrize("family", sampled(USUAL, "gemma3"))
def test_a_step_equals_full_forwards(family: Family) -> None:
    """Three receivers in two layers and at two tokens; senders of three layers at tokens in and out of windows."""
    model, pairs = tiny(family), make_pairs(family)
    plain, recorded = Plain(model), record_pairs(TorchSurgeon(model, derive(model)), pairs)
    rows_of = dict(list(effect_via_receivers(recorded, RECEIVERS, ALL).groupby("component")))
    rows_of["direct"] = direct_effect(recorded)
    cases = [("direct", layer, 12) for layer in (0, 3)]
    cases += [(part, layer, at) for part in "qkv" for layer in (0, 2) for at in (4, 9, 12)]
    effective = 0
    for (part, layer, at), (place, number) in product(cases, enumerate(pairs.ids)):
        expected, before = (score(plain, pairs, place, *case) for case in ((part, layer, at), (None, layer, at)))
        rows = rows_of[part].set_index(["prompt", "layer", "head", "token"])["after"]
        after = rows.get((number, layer, 1, at), default=before)  # a sender that is not run has no effect
        bound = allowance([expected, before], floor=1.0)
        assert after == pytest.approx(expected, abs=bound), (part, layer, at)
        effective += abs(expected - before) > MIN_CHANGE_SHARE * bound
    assert effective > len(cases) / 2


def score(plain: Plain, pairs: SearchPairs, place: int, part: Any, layer: int, at: int) -> float:
    """The answer's logit less the others' mean when receivers hear head 1 of a layer as in the noise prompt."""
    clean, sender = pairs.clean[place], (layer, 1)
    output = head_value(plain, "z", pairs.noise[place].ids, sender, int(MATCH[place, at]))
    send = sender_puts(plain, clean.ids, sender, at, output, frozen=True)
    above = [((node.layer, node.head), clean.roles[node.token]) for node in RECEIVERS if node.layer > layer]
    if part in ("q", "k", "v"):
        logits = logits_of_changed_receivers(plain, clean.ids, send, part, above, at)
    else:
        logits = plain.run([(clean.ids, send)]).logits[0] if part else plain.answer(clean.ids)
    answer, *others = pairs.answers[place].tolist()
    return float(logits[answer] - logits[others].mean())


def test_senders_that_cannot_act_are_not_run() -> None:
    """No sender at or above every receiver, before the first difference, behind the receivers, or, for a query, at
    another token than the receiver's; allowed senders only, if some are named."""
    model = tiny("llama")
    recorded = record_pairs(TorchSurgeon(model, derive(model)), make_pairs("llama"))
    rows = effect_via_receivers(recorded, [Node(2, 5, "token 9")], ALL)
    assert set(rows["layer"]) == {0, 1}
    assert set(rows["token"]) == set(range(2, 10))
    assert set(rows.loc[rows["component"] == "q", "token"]) == {9}
    two_senders = effect_via_receivers(
        recorded, [Node(2, 5, "token 9")], ALL, [Node(1, 3, "token 4"), Node(0, 2, "token 11")]
    )
    assert set(zip(two_senders["layer"], two_senders["head"], two_senders["token"], strict=True)) == {(1, 3, 4)}


def test_rows_that_slopes_skip_have_little_effect() -> None:
    """Rows that are not run move their receivers little, and would have done less than is asked for; those that are run
    have the same effects. With slopes of 0 the rows that move much are left."""
    model = tiny("llama")
    recorded = record_pairs(TorchSurgeon(model, derive(model)), make_pairs("llama"))
    key = ["component", "prompt", "layer", "head", "token"]
    full = effect_via_receivers(recorded, RECEIVERS, ALL).set_index(key)
    settings = SearchSettings(share=0.99, min_attention=0.0)
    screened = effect_via_receivers(recorded, RECEIVERS, settings).set_index(key)
    assert set(screened.index) < set(full.index)
    matching = full.loc[screened.index]
    assert matching["after"].to_numpy() == pytest.approx(
        screened["after"].to_numpy(), abs=allowance(full["after"], floor=1.0)
    )
    skipped = full.loc[full.index.difference(screened.index)]
    assert skipped["relative_change"].max() < LARGE
    assert (skipped["after"] - skipped["before"]).abs().max() < NEGLIGIBLE * settings.share * abs(recorded.total)
    recorded.__dict__["slopes"] = tuple([torch.zeros_like(slope) for slope in slopes] for slopes in recorded.slopes)
    blind = effect_via_receivers(recorded, RECEIVERS, settings).set_index(key)
    assert set(blind.index) == set(full.index[full["relative_change"] >= LARGE])


AT = torch.tensor([9, 11, 12])
SOURCE = torch.tensor([0, 1, 2, 2, 0])
TOKEN = torch.tensor([8, 10, 12, 3, 2])
"""Tokens before the head's own, one that is it, and two that sliding windows hide."""


@pytest.mark.parametrize("component", ["q", "k", "v"])
@pytest.mark.parametrize("family", sampled(USUAL, "gemma2", "qwen3"))
def test_z_of_a_receiver_equals_a_replay(family: Family, component: Any) -> None:
    """Heads of every layer, windows and caps included; each row is another prompt and token."""
    model = tiny(family)
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens(family), keep={"z"})
    dice = torch.Generator().manual_seed(1)
    for layer, head in ((0, 4), (1, 0), (2, 5), (3, 3)):
        token = AT[SOURCE] if component == "q" else TOKEN
        raw = 2 * torch.randn(len(SOURCE), surgeon.anatomy.parts[0].head_dim, generator=dice)  # (row, head_dim)
        actual = receiver_head(surgeon, recording, layer, head, AT).changed_z(component, raw, SOURCE, token)
        scope = None if component == "q" else "head"
        edit = Edit(component, raw[:, None, None], at=token[:, None], head=[(layer, head)], scope=scope)
        read = Read("z", at=AT[SOURCE][:, None], head=[(layer, head)])
        expected = surgeon.run(recording, [edit], [read], source=SOURCE, allow_noop=True)[0][:, 0, 0]
        assert agree(actual, expected)
        assert is_changed(expected, recording.sites["z"][layer][SOURCE, head, AT[SOURCE]])


def test_a_recorded_z_that_does_not_follow_from_its_inputs_is_refused() -> None:
    """A head whose z does not follow from its queries, keys and values (here: tampered with) is refused."""
    model = tiny("llama")
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens("llama"), keep={"z"})
    recording.sites["z"][1] = recording.sites["z"][1] * 1.01
    with pytest.raises(SurgeryError, match="differs from the recorded one"):
        receiver_head(surgeon, recording, 1, 2, AT)


SHARE = 0.0005
"""So little that decoys are run on the first block, too."""


def mean_effects(rows: pd.DataFrame, prompts: int) -> pd.Series:
    """The effect of each head at the places of a family, mean over prompts."""
    table = rows.assign(effect=rows["before"] - rows["after"], family=rows["place"].map(family))
    return table.groupby(["component", "layer", "head", "family"])["effect"].sum() / prompts


def test_skipped_senders_have_almost_no_effect() -> None:
    """A step on 36 prompts in blocks of 12, compared with the same with every sender on every prompt: means differ by
    at most the threshold of the first block, the first block has more senders than the others, and every block has
    some."""
    loaded_model = plant("pointer@llama")
    pairs = noise_pairs(Encoder(loaded_model.tokenizer), range(36))
    settings = SearchSettings(share=SHARE, block=12)
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    search = Search(pairs, settings, MeasuredSteps(surgeon, pairs, settings.block))
    front = sorted({row.node for row in search._select(search.step([]))}, reverse=True)
    screened_rows = search.step(front).rows
    full_rows = search._blocks(search._numbers, front, None, settings).rows
    assert set(screened_rows["prompt"]) == set(pairs.ids)
    senders = screened_rows.groupby("prompt").size()
    assert senders[list(pairs.ids[12:])].mean() < senders[list(pairs.ids[:12])].mean()
    full, screened = mean_effects(full_rows, 36), mean_effects(screened_rows, 36)
    difference = (full - screened.reindex(full.index, fill_value=0.0)).abs()
    min_effect = EDGE_SHARE * settings.share * abs(search.total_loss)
    assert full.abs().max() > 50 * min_effect
    assert difference.max() <= min_effect


STEP = 0.03
CURVED = 0.01
"""Of a symmetric difference what is left is of the third order: STEP squared, times derivatives of some ten."""


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "granite"])
def test_edge_attribution_is_the_effect_of_a_small_change(family: Any) -> None:
    """Of heads and MLPs, via two heads of one KV group at two tokens and two MLPs, reading by reading: the difference
    of the exact effects of small changes. Families with shared keys, norms after branches, parallel branches, a factor.
    """
    model, pairs = (build(family) if family == "granite" else tiny(family)).double(), make_pairs("llama")
    recorded = record_pairs(TorchSurgeon(model, derive(model)), pairs, mlps=True)
    nodes = [Node(3, 2, "readout"), Node(3, 0, "token 9"), Node(2, 1, "token 9"), Node(3, MLP, "readout")]
    nodes.append(Node(2, MLP, "token 9"))
    estimates = recorded.attribute([recorded_receiver(recorded, node) for node in nodes], "edge-attribution")
    settings, key = replace(ALL, mlps=True), ["component", "prompt", "layer", "head", "token"]
    kept = recorded.recording.sites
    sides = []
    for sign in (1.0, -1.0):
        z, mlp = (
            {layer: kept[site][layer] + sign * STEP * (noise - kept[site][layer]) for layer, noise in own.items()}
            for site, own in (("z", recorded.noise_z), ("mlp_out", recorded.noise_mlp))
        )
        rows = effect_via_receivers(replace(recorded, noise_z=z, noise_mlp=mlp), nodes, settings)
        sides.append(rows.set_index(key)["after"])
    measured = ((sides[0] - sides[1]) / (2 * STEP)).dropna()
    number = {prompt: line for line, prompt in enumerate(pairs.ids)}
    expected = [
        float(estimates[layer, head == MLP][READINGS.index(part), number[prompt], max(head, 0), token])
        for part, prompt, layer, head, token in measured.index
    ]
    rounded = 64 * torch.finfo(torch.float32).eps / STEP  # the score is rounded to float32
    bound = rounded * max(1.0, float(sides[0].abs().max())) + CURVED * float(measured.abs().max())
    assert measured.to_numpy() == pytest.approx(expected, abs=bound)
    by_kind = measured.abs().groupby([measured.index.get_level_values(0), measured.index.get_level_values(3) == MLP])
    assert by_kind.max().min() > 2 * bound  # each reading, from heads and from MLPs
    assert len(by_kind) == 8


def test_an_attribution_screen_runs_what_it_does_not_estimate_as_small() -> None:
    """The rows that it keeps have the exact effects; of a row that it drops the estimate is small, of no other."""
    model = tiny("llama")
    recorded = record_pairs(TorchSurgeon(model, derive(model)), make_pairs("llama"), mlps=True)
    key, nodes = ["component", "prompt", "layer", "head", "token"], [*RECEIVERS, Node(3, MLP, "readout")]
    full = effect_via_receivers(recorded, nodes, ALL).set_index(key)
    by_screen = {}
    for screen in ("edge-attribution", "integrated-edge-attribution"):
        settings = replace(ALL, share=0.9, screen=screen)
        screened = effect_via_receivers(recorded, nodes, settings).set_index(key)
        assert 0 < len(screened) < len(full)
        expected = full.loc[screened.index, "after"].to_numpy()
        assert screened["after"].to_numpy() == pytest.approx(expected, abs=allowance(full["after"], floor=1.0))
        estimates = recorded.attribute([recorded_receiver(recorded, node) for node in nodes], screen)
        floor = NEGLIGIBLE / ESTIMATE_ERROR * settings.share * abs(recorded.total)
        for row in full.index:
            part, prompt, layer, head, token = row
            line = recorded.pairs.ids.index(prompt)
            size = abs(estimates[layer, head == MLP][READINGS.index(part), line, max(head, 0), token])
            assert size > 0.999 * floor if row in screened.index else size < 1.001 * floor
        by_screen[screen] = set(screened.index)
    assert by_screen["edge-attribution"] != by_screen["integrated-edge-attribution"]
