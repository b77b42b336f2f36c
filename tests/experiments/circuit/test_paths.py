"""How path patching selects heads, which strata it notes, and what it refuses.

Its numbers are compared with full forwards in `tests/oracles/by_hand` and `tests/reference/test_exp2_paths.py`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, Stage, write_stratum
from rebinding.experiments.paths.summary import TinyProbabilities, estimate_heads, scores, select
from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.designs import design
from tests.experiments.setup import ROLES, fake_prompts
from tests.families.models import Family, tiny, tokens

RELATIVE = 2e-5
"""Of a probability. In float64 only norms, softmaxes and the last step to a probability are float32: a few units of
1.2e-7 each, in four layers (seen under `--rounding`: 1.2e-5)."""
STRATA = ("1.1.0", "0.2.1")


def make_pairs(family: Family) -> NoisePairs:
    """Two prompts and their noise."""
    ids = tokens(family, n=4)
    clean, noise = fake_prompts(ids[:2], ROLES), fake_prompts(ids[2:], ROLES)
    labels, rivals = torch.tensor([11, 50]), torch.tensor([[3, 4], [5, 6]])
    return NoisePairs((7, 8), tuple(clean), tuple(noise), labels, rivals, STRATA)


def test_nnsight_scores_a_stage_with_receivers() -> None:
    """Its recordings hold nothing but the prompts; the scores are those of the torch surgeon."""
    model, senders = tiny("llama").double(), [(0, 1), (0, 4), (1, 2)]
    anatomy, pairs = derive(model), make_pairs("llama")
    receivers = [(1, 0), (2, 5), (3, 2), (3, 3)]
    torch_rows, nnsight_rows = (
        score_stage(kind(model, anatomy), pairs, PAPER[1], receivers, senders=senders).rows
        for kind in (TorchSurgeon, NNsightSurgeon)
    )
    patched = torch_rows["logit_patch"].to_numpy()
    assert np.allclose(patched, nnsight_rows["logit_patch"], rtol=RELATIVE, atol=0)
    assert not np.allclose(patched, torch_rows["logit_orig"], rtol=1e-4)


def test_a_stage_without_receivers_to_send_to_is_refused() -> None:
    """An empty group upstream is an error here; discovery turns it into an empty group."""
    model = tiny("llama")
    with pytest.raises(ValueError, match="group A, which is empty"):
        score_stage(TorchSurgeon(model, derive(model)), make_pairs("llama"), PAPER[1], [])
    with pytest.raises(ValueError, match="go together"):
        Stage("X", "readout", "A", None, "readout", 1)


def make_evidence(changes: list[float], p_orig: float = 0.5) -> Evidence:
    """Evidence of one prompt and one layer with given relative changes."""
    rows = pd.DataFrame({"prompt": 0, "stratum": "1.1.0", "layer": 0, "head": range(len(changes)), "p_orig": p_orig})
    rows = rows.assign(p_patch=[p_orig * (1 + change) for change in changes])
    return Evidence("paths", rows, {})


def test_heads_with_the_most_negative_effects_are_selected() -> None:
    """The most negative first, ties by place, gains and rounding never; as published they fill up the list."""
    result = scores(make_evidence([-1e-6, -0.25, 0.5, -0.5, -0.25]))
    assert select(result, 2, min_effect=1e-3) == [(0, 3), (0, 1)]
    assert select(result, 9, min_effect=1e-3) == [(0, 3), (0, 1), (0, 4)]
    assert select(result, 4, rule="published", min_effect=1e-3) == [(0, 3), (0, 1), (0, 4), (0, 0)]
    assert select(result, 2, min_effect=1e-3, exclude=[(0, 3)]) == [(0, 1), (0, 4)]


def test_a_head_that_serves_one_order_of_naming_is_selected() -> None:
    """It has a large effect if the asked box is named second and none otherwise. Among 270 heads it is not significant
    by the spread over all prompts, and significant by the spread within strata. A head of the same mean and spread
    whose effects do not follow the strata is not selected."""
    dice, n = np.random.default_rng(0), 24
    place = np.arange(n) % 2  # of the asked box among those named
    noise = dice.normal(0, 0.3, (n, 270))
    noise[:, 0] -= 1.0 * place
    noise[:, 1] -= 1.0 * dice.permutation(place)
    change = pd.DataFrame(noise, columns=pd.MultiIndex.from_product([range(30), range(9)], names=["layer", "head"]))
    heads = estimate_heads(change, place.tolist())
    assert heads["freedom"].unique().tolist() == [n - 2]
    assert select(heads, 9, rule="sure", min_effect=0.05) == [(0, 0)]
    assert select(estimate_heads(change, [0] * n), 9, rule="sure", min_effect=0.05) == []


def test_rows_have_the_stratum_of_their_prompt() -> None:
    """The asked box's place among the names of the swap, and the slots of answer and question."""
    stories = design("counterbalanced")
    strata = [write_stratum(stories.prompt(number)) for number in range(36)]
    assert len(set(strata)) == 15
    prompt = stories.prompt(5)
    (swap,) = prompt.story.operations
    place = [swap.first, swap.second, prompt.question].index(prompt.question)
    slots = (prompt.story.objects.index(prompt.answer), prompt.story.boxes.index(prompt.question))
    assert strata[5] == ".".join(map(str, (place, *slots)))
    pairs, model = make_pairs("llama"), tiny("llama")
    rows = score_stage(TorchSurgeon(model, derive(model)), pairs, PAPER[0]).rows
    noted = rows.groupby("prompt")["stratum"].unique()
    assert {number: list(values) for number, values in noted.items()} == {7: [STRATA[0]], 8: [STRATA[1]]}


def test_tiny_probabilities_raise_a_warning() -> None:
    """A relative change of almost nothing is almost meaningless."""
    with pytest.warns(TinyProbabilities, match="1 of 1 prompts"):
        scores(make_evidence([-0.5], p_orig=1e-6))
