"""What the experiment of section 4.2 patches, keeps and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.roles import measure
from rebinding.experiments.roles.measure import run_roles
from rebinding.experiments.roles.request import WHOLE_GROUP, RolePair
from rebinding.experiments.roles.summary import effects
from rebinding.surgery import SurgeryError
from rebinding.task.designs import design
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import Bench, random_model

GROUPS: Any = {"A": [(2, 1), (3, 4)], "B": [(1, 0), (1, 2)], "D": [(1, 5)], "E": [(1, 3)]}


def close(evidence: Evidence) -> float:
    """The allowed difference of two implementations on these logits."""
    return allowance(evidence.rows["before"], evidence.rows["after"])


def pairs(bench: Bench, kind: str, n: int = 2, *, mirror: bool = False) -> list[RolePair]:
    designed = [getattr(design("published"), kind)(number, mirror=mirror) for number in range(n)]
    sides = [bench.encoder.encode(getattr(pair, side) for pair in designed) for side in ("original", "counterfactual")]
    return [RolePair(number, *pair) for number, pair in enumerate(zip(*sides, strict=True))]


def run(bench: Bench, kind: str = "pointer", *, n: int = 2, mirror: bool = False, **options: Any) -> Evidence:
    token = bench.encoder.answer_token
    return run_roles(bench.surgeon, pairs(bench, kind, n, mirror=mirror), GROUPS, kind=kind, token=token, **options)


def test_words_are_those_of_the_story() -> None:
    """Published pairs move the answer from the first slot to the second; mirrored ones, as in the figure, back."""
    bench = random_model("llama")
    for mirror, (answer, rival) in ((False, (0, 1)), (True, (1, 0))):
        for pair in pairs(bench, "pointer", mirror=mirror):
            objects = pair.original.prompt.story.objects
            assert pair.words()[0] == objects[answer]
            assert pair.words()[2] == objects[rival]
            assert pair.words()[1] == pair.counterfactual.prompt.story.objects[rival]
            assert pair.words()[1] not in objects
    rows = run(bench, single_heads=False).rows
    assert rows["token"].tolist() == [bench.encoder.answer_token(text) for text in rows["text"]]


def test_future_attention_is_kept_or_removed() -> None:
    """In published pointer pairs the tokens of D and E stand later in the counterfactual; nowhere else do they."""
    bench = random_model("llama")
    full, masked = run(bench, n=8, future="keep"), run(bench, n=8, future="mask")
    future = full.rows.groupby("group")["future_mass"].max()
    assert min(future["D"], future["E"]) > 1e-6, "masked, it is zero to the bit"
    assert future["A"] == future["B"] == 0
    difference = (full.rows["after"] - masked.rows["after"]).abs().groupby(full.rows["group"]).max()
    assert difference[["D", "E"]].min() > MIN_CHANGE_SHARE * close(full)
    assert difference[["A", "B"]].max() == 0
    assert run(bench, "content_control").rows["future_mass"].max() == 0


def test_a_masked_pattern_sums_to_one() -> None:
    """Half of the attention is after the query at key 1: what is left doubles. Attention on the past alone stays."""
    rows = torch.tensor([[[0.125, 0.375, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]])  # (pair, head, key)
    expected = torch.tensor([[[0.25, 0.75, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]])
    torch.testing.assert_close(measure._masked(rows, torch.tensor([1])), expected, rtol=0, atol=0)


def test_a_group_is_patched_as_one() -> None:
    """Rows of the whole group are not those of any of its heads, unless it has only one."""
    evidence = run(random_model("llama"))
    table = effects(evidence).set_index(["group", "head", "prompt"])["pointed_object"].sort_index()
    for group, heads in GROUPS.items():
        for _, head in heads:
            difference = (table[group, head] - table[group, WHOLE_GROUP]).abs().max()
            assert difference <= close(evidence) if len(heads) == 1 else difference > MIN_CHANGE_SHARE * close(evidence)


def test_a_patch_of_the_same_prompt_changes_nothing() -> None:
    """The identity: own patterns and outputs written back leave every logit as it was, and count as no-ops."""
    bench = random_model("gemma2")
    same_pairs = [RolePair(pair.id, pair.original, pair.original) for pair in pairs(bench, "pointer")]
    evidence = run_roles(bench.surgeon, same_pairs, GROUPS, kind="identity", token=bench.encoder.answer_token)
    assert evidence.rows["relative_change"].max() == 0
    assert (evidence.rows["after"] - evidence.rows["before"]).abs().max() < close(evidence)


def test_nothing_to_patch_is_refused() -> None:
    bench = random_model("llama")
    with pytest.raises(SurgeryError, match="nothing to patch"):
        run_roles(bench.surgeon, pairs(bench, "pointer"), {"A": []}, kind="pointer", token=bench.encoder.answer_token)
