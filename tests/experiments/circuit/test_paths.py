"""How path patching selects heads, which strata it notes, and what it refuses.

Its numbers are compared with full forwards in `tests/oracles/by_hand` and `tests/reference/test_exp2_paths.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.evidence import Evidence
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, PathSettings, Stage, write_stratum
from rebinding.experiments.paths.summary import TinyProbabilities, estimate_heads, scores, select
from rebinding.surgery import Anatomy, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Prompt
from tests.surgery.models import Family, tiny, tokens

RELATIVE = 2e-5
"""Of a probability. In float64 only norms, softmaxes and the last step to a probability are float32: a few units of
1.2e-7 each, in four layers (seen under `--rounding`: 1.2e-5)."""
ROLES = {"context_partner": 4, "swap_partner": 7, "question_box": 9, "readout": 12}
STRATA = ("1.1.0", "0.2.1")
RECEIVERS = {
    "A": [],
    "B": [(1, 0), (2, 5), (3, 2), (3, 3)],
    "C": [(1, 1), (1, 2), (3, 4)],
    "D": [(2, 0), (2, 1), (3, 5)],
    "E": [(2, 3), (3, 0)],
}


def fake_prompts(prompts: Tensor, roles: dict[str, int]) -> list[Encoded]:
    """Random tokens with roles at fixed places; the story is never looked at."""
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    return [Encoded("", tuple(row.tolist()), dict(roles), prompt=Prompt(story, "A")) for row in prompts]


def make_pairs(family: Family, noise_roles: dict[str, int] = ROLES) -> NoisePairs:
    """Two prompts and their noise."""
    ids = tokens(family, n=4)
    clean, noise = fake_prompts(ids[:2], ROLES), fake_prompts(ids[2:], noise_roles)
    labels, rivals = torch.tensor([11, 50]), torch.tensor([[3, 4], [5, 6]])
    return NoisePairs((7, 8), tuple(clean), tuple(noise), labels, rivals, STRATA)


def with_repeated_keys(model: PreTrainedModel, family: Family, anatomy: Anatomy, **shape: Any) -> PreTrainedModel:
    """The same model with one KV head per query head, on the library's own eager attention."""
    single = tiny(family, num_key_value_heads=anatomy.n_heads, **shape)
    state = dict(model.state_dict())
    for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
        spread = state[name].unflatten(0, (-1, anatomy.parts[0].head_dim)).repeat_interleave(anatomy.parts[0].group, 0)
        state[name] = spread.flatten(0, 1)
    single.load_state_dict(state)
    return single


def table(evidence: Evidence, column: str) -> Tensor:
    """(prompt, layer, head)."""
    rows = evidence.rows.sort_values(["prompt", "layer", "head"])
    shape = tuple(rows[name].nunique() for name in ("prompt", "layer", "head"))
    return torch.tensor(rows[column].to_numpy().copy()).view(shape)


def test_block_size_does_not_matter() -> None:
    """One prompt at a time or all at once."""
    model = tiny("gemma2").double()
    surgeon = TorchSurgeon(model, derive(model))
    scene = make_pairs("gemma2")
    runs = [score_stage(surgeon, scene, PAPER[2], RECEIVERS["C"], settings=PathSettings(block=size)) for size in (1, 2)]
    results = [table(run, "p_patch") for run in runs]
    assert torch.allclose(results[0], results[1], rtol=RELATIVE, atol=0)


def test_nnsight_scores_a_stage_with_receivers() -> None:
    """Its recordings hold nothing but the prompts; the scores are those of the torch surgeon."""
    model, senders = tiny("llama").double(), [(0, 1), (0, 4), (1, 2)]
    anatomy, pairs = derive(model), make_pairs("llama")
    torch_rows, nnsight_rows = (
        score_stage(kind(model, anatomy), pairs, PAPER[1], RECEIVERS["B"], senders=senders).rows
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


def test_selection_by_hand() -> None:
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


def test_strata_are_those_of_the_prompts() -> None:
    """The column has the stratum of the prompt in each of its rows."""
    stories = design("counterbalanced")
    strata = {number: write_stratum(stories.prompt(number)) for number in range(36)}
    assert len(set(strata.values())) == 15
    prompt = stories.prompt(5)
    place = [prompt.story.operations[0].first, prompt.story.operations[0].second, prompt.question].index(
        prompt.question
    )
    assert (
        strata[5] == f"{place}.{prompt.story.objects.index(prompt.answer)}.{prompt.story.boxes.index(prompt.question)}"
    )
    scene = make_pairs("llama")
    model = tiny("llama")
    rows = score_stage(TorchSurgeon(model, derive(model)), scene, PAPER[0]).rows
    for number, stratum in rows.groupby("prompt")["stratum"].unique().items():
        assert stratum.tolist() == [STRATA[scene.ids.index(number)]]


def test_tiny_probabilities_give_a_warning() -> None:
    """A relative change of almost nothing is almost meaningless."""
    with pytest.warns(TinyProbabilities, match="1 of 1 prompts"):
        scores(make_evidence([-0.5], p_orig=1e-6))
