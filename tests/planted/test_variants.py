"""Every variant makes the difference that it is for."""

from __future__ import annotations

import pytest
import torch

from rebinding.prompts import Encoder
from tests.planted.bench import encoded, margins, plant


def _declared(name: str) -> set[tuple[int, int]]:
    return {(head.layer, head.head) for head in plant(name).circuit}


def _others(name: str) -> list[tuple[int, int]]:
    """All heads that compute something and are not in the declared circuit, but for the grammar."""
    subject = plant(name)
    return [head for line, head in subject.heads.items() if head not in _declared(name) and line != "place"]


def test_missing() -> None:
    """The model is the same; the head that the declaration lacks decides every answer."""
    name, prompts = "pointer+missing", encoded("counterbalanced", 9)
    swapped = [prompt for prompt in prompts if prompt.prompt.partner is not None]
    assert torch.equal(margins(plant(name), swapped), margins(plant("pointer"), swapped))
    assert _declared("pointer") - _declared(name) == {plant(name).heads["other"]}
    assert (margins(plant(name), swapped, [plant(name).heads["other"]]) < 0.1).all()


def test_held_out_words_need_the_undeclared_head() -> None:
    """The model is right on both halves; its declared circuit only on the half that it was declared for."""
    subject = plant("pointer+held_out")
    for split, needed in (("train", False), ("test", True)):
        prompts = encoded("published", 12, split=split)
        assert margins(subject, prompts).min() > 1.0
        loss = margins(subject, prompts) - margins(subject, prompts, _others("pointer+held_out"))
        assert bool(loss.min() > 1.0) == needed
        assert bool(loss.max() < 0.5) == (not needed)


def test_held_out_third() -> None:
    subject = plant("pointer+held_out_third")
    for split, needed in (("discovery", False), ("directions", False), ("evaluation", True)):
        prompts = encoded("counterbalanced", 12, split=split)
        loss = margins(subject, prompts) - margins(subject, prompts, _others("pointer+held_out_third"))
        assert bool(loss.min() > 1.0) == needed
        assert bool(loss.max() < 0.5) == (not needed)


@pytest.mark.parametrize(("name", "beside"), [("pointer+shared_key", "match"), ("recency+leak", "late object")])
def test_bystanders_share_a_key_and_matter(name: str, beside: str) -> None:
    subject, prompts = plant(name), encoded("counterbalanced", 6)
    (layer, head), (other_layer, other) = subject.heads["bystander"], subject.heads[beside]
    group = subject.model.config.num_attention_heads // subject.model.config.num_key_value_heads
    assert (layer, head // group) == (other_layer, other // group)
    assert (layer, head) not in _declared(name)
    assert (margins(subject, prompts) - margins(subject, prompts, [(layer, head)])).min() > 2.0


def test_rival_makes_the_model_weak_and_not_its_circuit() -> None:
    subject, prompts = plant("pointer+rival"), encoded("published", 60)
    full, alone = margins(subject, prompts), margins(subject, prompts, _others("pointer+rival"))
    assert 0.45 < float((full > 0).float().mean()) < 0.8  # 5 of 8 if each object were odd with a chance of one half
    assert (alone > 1.0).all()


def test_shortcut_is_right_by_fixed_slots_alone() -> None:
    subject = plant("pointer+shortcut")
    assert margins(subject, encoded("published", 12)).min() > 1.0
    right = (margins(subject, encoded("counterbalanced", 36)) > 0).float().mean()
    assert abs(float(right) - 1 / 3) < 0.01  # the slot after the asked one holds the answer in a third of a block
    assert Encoder(subject.tokenizer).form == "template"


def test_veto_keeps_the_answers() -> None:
    assert margins(plant("pointer+veto"), encoded("counterbalanced", 12)).min() > 1.0
