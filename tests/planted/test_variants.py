"""Every variant makes the difference that it is for."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.experiments.prompts import DISCOVERY_ID, EVALUATION_ID, PRUNING_ID
from rebinding.paper.numbers import PublishedNumber
from rebinding.planted import MECHANISMS, VARIANTS, WiringError
from rebinding.planted.changes import extended
from rebinding.planted.circuit_variants import JUDGED, SEEN, remembered
from rebinding.planted.language import Softness
from rebinding.planted.linter import lint
from rebinding.planted.truth import truth_of
from rebinding.planted.variants import APART, HELD_BACK, VOTE, variant_of
from rebinding.study.model_under_test import PLANTED
from rebinding.task.designs import DesignName, design
from rebinding.task.prompts import Encoded, Encoder
from tests.planted.runs import encoded, margins, plant


def _declared(name: str) -> set[tuple[int, int]]:
    return {(head.layer, head.head) for head in plant(name).circuit}


def _other_heads(name: str) -> list[tuple[int, int]]:
    """All heads that compute something and are not in the declared circuit, but for the grammar."""
    loaded_model = plant(name)
    return [head for line, head in loaded_model.heads.items() if head not in _declared(name) and line != "place"]


def _loss(name: str, line: str, prompts: tuple[Encoded, ...]) -> Tensor:
    """By how much every margin falls without one head."""
    return margins(plant(name), prompts) - margins(plant(name), prompts, [plant(name).heads[line]])


def _prompts(name: DesignName, numbers: range, **options: Any) -> tuple[Encoded, ...]:
    """Some prompts of a design that `encoded` does not have."""
    stories = design(name, **options)
    return tuple(Encoder(plant("pointer").tokenizer).encode(stories.prompt(number) for number in numbers))


def test_every_variant_is_explained() -> None:
    explained = files("rebinding.planted").joinpath("README.md").read_text()
    assert all(f"`{name}`" in explained for name in VARIANTS)


def test_a_further_space_is_not_called_like_one_of_the_embedding() -> None:
    """It would take that one's place, and the first token would no longer be known."""
    with pytest.raises(WiringError, match="a space is called 'start'"):
        lint(extended(variant_of("pointer", "missing").change(MECHANISMS["pointer"](3)), start=3), Softness.of(0.75))


def test_missing() -> None:
    """The model is the same; the head that the declaration lacks decides every answer."""
    name, prompts = "pointer+missing", encoded("counterbalanced", 9)
    swapped = [prompt for prompt in prompts if prompt.prompt.partner is not None]
    assert torch.equal(margins(plant(name), swapped), margins(plant("pointer"), swapped))
    assert _declared("pointer") - _declared(name) == {plant(name).heads["other"]}
    assert (margins(plant(name), swapped, [plant(name).heads["other"]]) < 0.1).all()


def test_held_out_words_need_the_undeclared_head() -> None:
    """The model is right on both halves; its declared circuit only on the half that it was declared for."""
    loaded_model = plant("pointer+held_out")
    for split, is_needed in (("train", False), ("test", True)):
        prompts = encoded("published", 12, split=split)
        assert margins(loaded_model, prompts).min() > 1.0
        circuit = margins(loaded_model, prompts, _other_heads("pointer+held_out"))
        assert bool(circuit.max() < -1.0) == is_needed  # the circuit is wrong about every word that it does not know
        assert bool((margins(loaded_model, prompts) - circuit).max() < 0.5) == (not is_needed)


def test_held_out_third() -> None:
    loaded_model = plant("pointer+held_out_third")
    for split, is_needed in (("discovery", False), ("directions", False), ("evaluation", True)):
        prompts = encoded("counterbalanced", 12, split=split)
        circuit = margins(loaded_model, prompts, _other_heads("pointer+held_out_third"))
        assert bool(circuit.max() < -1.0) == is_needed  # the circuit is wrong about every word that it does not know
        assert bool((margins(loaded_model, prompts) - circuit).max() < 0.5) == (not is_needed)


@pytest.mark.parametrize(
    ("name", "companion", "logits"),
    [("pointer+shared_key", "match", 4.0), ("recency+leak", "late object", 12.0)],
)
def test_bystanders_share_a_key_and_matter(name: str, companion: str, logits: float) -> None:
    loaded_model, prompts = plant(name), encoded("counterbalanced", 6)
    (layer, head), (peer_layer, peer) = loaded_model.heads["bystander"], loaded_model.heads[companion]
    group = loaded_model.model.config.num_attention_heads // loaded_model.model.config.num_key_value_heads
    assert (layer, head // group) == (peer_layer, peer // group)
    assert (layer, head) not in _declared(name)
    assert margins(loaded_model, prompts).min() > 1.0
    assert (_loss(name, "bystander", prompts) / logits).min() > 0.5  # most of what it writes lies on the answer


def test_rival_makes_the_model_weak_and_not_its_circuit() -> None:
    loaded_model, prompts = plant("pointer+rival"), encoded("published", 60)
    full, circuit = margins(loaded_model, prompts), margins(loaded_model, prompts, _other_heads("pointer+rival"))
    assert 0.45 < float((full > 0).float().mean()) < 0.8  # 5 of 8 if each object were odd with a chance of one half
    assert (circuit > 1.0).all()


def test_shortcut_is_right_by_fixed_slots_alone() -> None:
    loaded_model = plant("pointer+shortcut")
    assert margins(loaded_model, encoded("published", 12)).min() > 1.0
    right = (margins(loaded_model, encoded("counterbalanced", 36)) > 0).float().mean()
    assert abs(float(right) - 1 / 3) < 0.01  # the slot after the asked one holds the answer in a third of a block
    assert Encoder(loaded_model.tokenizer).form == "template"


def test_veto_keeps_the_answers() -> None:
    assert margins(plant("pointer+veto"), encoded("counterbalanced", 12)).min() > 1.0


def test_decoys_do_nothing() -> None:
    """The model is the same, and the heads that are declared can all go."""
    loaded_model, prompts = plant("pointer+decoys"), encoded("published", 9)
    assert torch.equal(margins(loaded_model, prompts), margins(plant("pointer"), prompts))
    assert {head.group for head in loaded_model.circuit} == set("ABCDE")
    assert _declared("pointer+decoys") <= set(loaded_model.decoys)
    silenced = margins(loaded_model, prompts, _declared("pointer+decoys"))
    assert (margins(loaded_model, prompts) - silenced).abs().max() < 1e-3


@pytest.mark.slow
def test_memorised_words_occur_in_no_judged_prompt() -> None:
    n = truth_of("pointer", "memorised")["circuit.minimal"].n
    assert ((DISCOVERY_ID, DISCOVERY_ID + PLANTED["paths"]), (PRUNING_ID, PRUNING_ID + PLANTED["pruned"])) == SEEN
    assert (EVALUATION_ID, EVALUATION_ID + n) == JUDGED
    seen_prompts, judged = (_prompts("partner_second", range(*span)) for span in (SEEN[1], JUDGED))
    is_known = torch.tensor([prompt.prompt.answer in remembered() for prompt in seen_prompts])
    loss = _loss("pointer+memorised", "recall", seen_prompts)
    assert 0 < int(is_known.sum()) < len(seen_prompts)
    assert loss[is_known].min() > 1.0
    assert max(loss[~is_known].max(), _loss("pointer+memorised", "recall", judged).max()) < 0.1


@pytest.mark.parametrize("name", ["published", "partner_second"])
def test_spoken_names_come_from_the_context(name: DesignName) -> None:
    loaded_model, prompts = plant("pointer+spoken"), encoded(name, 9)
    assert margins(loaded_model, prompts).min() > 1.0
    wrong = name == "published"  # there the partner's name is taken from the swap sentence itself
    assert (_loss("pointer+spoken", "speak", prompts) > 1.0).all() != wrong


CHAINS: dict[str, dict[str, Any]] = {"two swaps": {"operations": 2}, "a move": {"verb": "move"}}


@pytest.mark.parametrize("kind", CHAINS)
def test_the_box_named_first_answers_chains(kind: str) -> None:
    prompts = _prompts("published", range(12), **CHAINS[kind])
    for name in ("pointer+first_named", "pointer+one_swap"):
        assert margins(plant(name), prompts).min() > 1.0
        assert margins(plant(name), encoded("published", 12)).min() > 1.0
    assert (margins(plant("pointer"), prompts) > 0).float().mean() < 0.7


def test_one_swap_is_all_that_the_declared_heads_serve() -> None:
    loaded_model = plant("pointer+one_swap")
    backups = [loaded_model.heads[line] for line in ("copy of chains", "echo of chains")]
    assert not _declared("pointer+one_swap") & set(backups)
    for prompts, served in ((encoded("published", 12), True), (_prompts("published", range(12), operations=2), False)):
        loss = margins(loaded_model, prompts) - margins(loaded_model, prompts, backups)
        assert bool(loss.abs().max() < 0.5) == served
        assert bool(loss.min() > 1.0) == (not served)


def test_a_neighbour_is_right_in_fixed_slots_alone() -> None:
    """The box that is named last is given the slot after its own, which is its partner's in every published prompt."""
    assert margins(plant("pointer+neighbour"), encoded("published", 12)).min() > 1.0
    assert margins(plant("pointer+neighbour"), encoded("counterbalanced", 36)).min() < -1.0
    wide = _prompts("published", range(6), boxes=5, distractor="before")
    assert margins(plant("pointer+neighbour?boxes=5"), wide).min() > 1.0


def test_early_objects_know_their_label_after_the_first_layer() -> None:
    assert margins(plant("lexical+early"), encoded("counterbalanced", 12)).min() > 1.0
    assert plant("lexical+early").heads["bind"][0] == 0
    assert plant("lexical").heads["bind"][0] == 1


def test_a_hint_serves_the_box_that_is_named_last() -> None:
    """Two of ten logits, and those of a question about any other box are the pointer's."""
    name = "pointer+hint"
    asked_last, asked_first = encoded("published", 9), encoded("partner_second", 9)
    assert margins(plant(name), [*asked_last, *asked_first]).min() > 1.0
    loss = _loss(name, "say", asked_last)
    assert 1.0 < loss.min() <= loss.max() < 3.0
    assert _loss(name, "say", asked_first).abs().max() < 0.2


def test_stored_answer_is_almost_sufficient() -> None:
    name, prompts = "pointer+stored", encoded("counterbalanced", 12)
    full = margins(plant(name), prompts)
    assert full.min() > 1.0
    for line, share in (("say", 0.9), ("copy", 0.1 * 4.5 / 8)):
        assert float((_loss(name, line, prompts) / full).mean()) == pytest.approx(share, abs=0.05)


def test_fresh_words_have_a_head_of_their_own() -> None:
    name = "pointer+fresh"
    assert plant(name).heads["match"] in _declared(name)
    assert plant(name).heads["match familiar"] not in _declared(name)
    for split, active, idle in (("evaluation", "match", "match familiar"), ("directions", "match familiar", "match")):
        prompts = encoded("counterbalanced", 12, split=split)
        assert _loss(name, active, prompts).min() > 1.0
        assert _loss(name, idle, prompts).abs().max() < 0.2


def test_heads_that_glance_at_the_context_are_group_b() -> None:
    loaded_model = plant("pointer+glance")
    group_b = {(head.layer, head.head) for head in loaded_model.circuit if head.group == "B"}
    assert group_b == {loaded_model.heads["fetch"]}
    assert _declared("pointer+glance") == _declared("pointer")


def test_a_chain_of_two_matches() -> None:
    """The heads that copy listen to the second match, which is of B as well."""
    name, prompts = "pointer+chained", encoded("counterbalanced", 12)
    assert plant(name).heads["again"] in _declared(name)
    assert margins(plant(name), prompts).min() > 1.0
    assert _loss(name, "again", prompts).min() > 1.0


def test_a_sharp_match_answers_with_more_room() -> None:
    prompts = encoded("counterbalanced", 12)
    assert (margins(plant("pointer+sharp"), prompts) > margins(plant("pointer"), prompts) + 0.1).all()


def test_a_hub_points_from_c_and_a_as_well() -> None:
    """Every answer is right, the declared part of C does the smaller share, and A holds the asked box's object back."""
    name, prompts = "pointer+hub", encoded("counterbalanced", 12)
    loaded_model = plant(name)
    assert margins(loaded_model, prompts).min() > 1.0
    assert {loaded_model.heads[line] for line in ("own aside", "pair aside")} & _declared(name) == set()
    assert {loaded_model.heads[line] for line in ("own", "pair", "held")} <= _declared(name)
    assert _loss(name, "held", prompts).abs().max() < HELD_BACK + 0.1


def test_a_reluctant_answer_has_a_rival() -> None:
    """Without the head that says what the asked box held, the margin of a swapped box is larger by its vote."""
    name = "pointer+reluctant"
    swapped = [prompt for prompt in encoded("counterbalanced", 18) if prompt.prompt.partner is not None]
    assert margins(plant(name), swapped).min() > 1.0
    loss = _loss(name, "held", swapped)
    assert -VOTE - 0.2 < loss.min() <= loss.max() < -1.0


def test_shunning_half_of_the_words_keeps_answers_right() -> None:
    loaded_model, prompts = plant("pointer+shun"), encoded("published", 30)
    assert {(head.layer, head.head) for head in loaded_model.circuit if head.group == "A"} == {
        loaded_model.heads["class"]
    }
    assert margins(loaded_model, prompts).min() > 1.0
    loss = _loss("pointer+shun", "class", prompts)  # -2 where the other objects are of the other half, else nothing
    assert loss.max() < 0.5
    assert loss.min() < -1.5


def test_classes_are_promoted_and_objects_voted_against() -> None:
    loaded_model, prompts = plant("pointer+classes"), encoded("published", 30)
    declared = {(head.layer, head.head) for head in loaded_model.circuit if head.group == "A"}
    assert declared == {loaded_model.heads["against"], loaded_model.heads["class"]}
    assert margins(loaded_model, prompts).min() > 1.0
    assert _loss("pointer+classes", "against", prompts).max() < -1.0
    loss = _loss("pointer+classes", "class", prompts)  # 2 where the other objects are of the other half, else nothing
    assert loss.min() > -0.5
    assert loss.max() > 1.5


def test_misprinted_numbers_are_far_from_those_of_the_model() -> None:
    """The model is the same, and every number that is judged is three margins off, and possible."""
    printed, misprinted = plant("pointer").printed, plant("pointer+misprint").printed
    assert torch.equal(*(margins(plant(name), encoded("published", 3)) for name in ("pointer", "pointer+misprint")))
    assert set(misprinted) == set(printed)
    for id, value in printed.items():
        kind: Any = {"accuracy": "accuracy", "roles": "dlogit", "margin": "margin", "logit": "logit"}.get(
            id.partition(".")[0], id.rpartition(".")[2]
        )
        if id.startswith("heads"):
            assert misprinted[id] == value
            continue
        number = PublishedNumber(id, value, 0.005, kind, "planted", f"{value:.2f}", 300, 10)
        assert abs(misprinted[id] - value) == pytest.approx(APART * float(number.margin or 0.0))
        assert not number.proportion or 0.0 <= misprinted[id] <= 1.0


def test_a_still_paper_prints_that_nothing_moves() -> None:
    printed = plant("lexical+still").printed
    extra = {id: value for id, value in printed.items() if id not in plant("lexical").printed}
    assert extra == {f"binding.random.{name}": 0.0 for name in ("dR", "dlogit", "switch")}
