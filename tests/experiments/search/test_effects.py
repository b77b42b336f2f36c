"""A step of the search equals full forwards with hooks, sender by sender; skipped senders have no effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.pairs import SearchPairs, record_pairs
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import LARGE, NEGLIGIBLE, direct_effect, effect_via_receivers
from rebinding.surgery import TorchSurgeon, derive
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.everyday import sampled
from tests.experiments.circuit.naive import Naive
from tests.experiments.circuit.test_paths import fake_prompts, with_repeated_keys
from tests.experiments.search.naive import score, score_after
from tests.surgery.models import FAMILIES, Family, tiny, tokens

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


@pytest.mark.parametrize("family", sampled(FAMILIES, "llama", "gemma3"))
def test_equals_full_forwards(family: Family) -> None:
    """Three receivers in two layers and at two tokens; senders of three layers at tokens in and out of windows."""
    model = tiny(family)
    anatomy, pairs = derive(model), make_pairs(family)
    plain = with_repeated_keys(model, family, anatomy)
    naive = Naive(plain, anatomy.layer_modules(plain), anatomy.n_heads, anatomy.parts[0].head_dim)
    recorded = record_pairs(TorchSurgeon(model, anatomy), pairs)
    rows = direct_effect(recorded)
    rows_of = {"direct": rows} | dict(list(effect_via_receivers(recorded, RECEIVERS, ALL).groupby("component")))
    cases = [("direct", layer, 12) for layer in (0, 3)]
    cases += [(part, layer, at) for part in "qkv" for layer in (0, 2) for at in (4, 9, 12)]
    effective = 0
    for part, layer, at in cases:
        for number, clean in enumerate(pairs.clean):
            sender, answers = Node(layer, 1, PLACES[at]), pairs.answers[number].tolist()
            value = recorded.noise_z[layer][number, 1, at]
            expected = score_after(naive, clean, value, answers, sender, RECEIVERS, part)
            before = score(naive, clean, answers)
            actual = _after(rows_of[part], pairs.ids[number], layer, at)
            bound = allowance([expected, before], floor=1.0)
            assert (before if actual is None else actual) == pytest.approx(expected, abs=bound), (part, layer, at)
            effective += abs(expected - before) > MIN_CHANGE_SHARE * bound
    assert effective > len(cases) / 2


def _after(rows: Any, prompt: int, layer: int, at: int) -> float | None:
    part = rows[(rows["prompt"] == prompt) & (rows["layer"] == layer) & (rows["head"] == 1) & (rows["token"] == at)]
    assert len(part) <= 1
    return float(part["after"].iloc[0]) if len(part) else None


def test_pairs_that_cannot_act_are_not_run() -> None:
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


def test_slope_error_is_small() -> None:
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
    recorded.__dict__["slopes"] = [torch.zeros_like(slope) for slope in recorded.slopes]
    blind = effect_via_receivers(recorded, RECEIVERS, settings).set_index(key)
    assert set(blind.index) == set(full.index[full["relative_change"] >= LARGE])
