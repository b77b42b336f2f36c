"""Training: the loss falls, an interrupted run ends where a whole one does, and the command writes what it says.

Its prompts: every case occurs, held-out words never do, and one order omits one question.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rebinding.cli.commands import main
from rebinding.learned.evaluation import HELD_OUT, Accuracy, evaluation_designs, is_learned
from rebinding.learned.lora import Adapter, attached, read_adapter
from rebinding.learned.shelf import CARD_PAGE, Card
from rebinding.learned.training import (
    BOXES,
    NOTES,
    ORDERS,
    Order,
    Recipe,
    Training,
    TrainingStep,
    curriculum,
    words,
)
from rebinding.models import load
from rebinding.task.boxes import Swap
from rebinding.task.text import Prompt
from rebinding.task.words import Vocabulary
from tests.close import ROUNDING, agree
from tests.learned.small import encoder, model, save
from tests.task.stories import retrieved_slot

STEPS = 60


def draw_prompts(order: Order) -> list[Prompt]:
    return [prompt for step in range(STEPS) for prompt in curriculum(Vocabulary(), Recipe(order), step)]


def place(prompt: Prompt) -> str:
    """How the last swap names the asked box."""
    match prompt.story.operations:
        case (*_, Swap(first, second)):
            return {first: "first", second: "second"}.get(prompt.question, "not")
    return "no swap"


def test_a_step_is_a_function_of_its_number() -> None:
    assert curriculum(Vocabulary(), Recipe(seed=1), 5) == curriculum(Vocabulary(), Recipe(seed=1), 5)
    recipes = [Recipe(order, seed) for order in ORDERS for seed in (0, 1)]
    steps = [curriculum(Vocabulary(), recipe, step) for recipe in recipes for step in (5, 6)]
    assert all(step != earlier for place, step in enumerate(steps) for earlier in steps[:place])


def test_words_held_out_never_occur_and_all_others_do() -> None:
    prompts, unseen = draw_prompts("all"), Vocabulary().split(HELD_OUT)
    labels = {label for prompt in prompts for label in prompt.story.boxes}
    objects = {object for prompt in prompts for object in prompt.story.objects}
    assert not labels & set(unseen.labels)
    assert not objects & set(unseen.objects)
    assert labels == set(words(Vocabulary()).labels)
    assert objects == set(words(Vocabulary()).objects)


def test_every_number_of_swaps_and_every_place_of_the_asked_box_occurs() -> None:
    prompts = draw_prompts("all")
    assert {len(prompt.story.operations) for prompt in prompts} == {0, 1, 2}
    assert {(prompt.query_slot, prompt.answer_slot) for prompt in prompts} == {
        (a, b) for a in range(BOXES) for b in range(BOXES)
    }
    counts = Counter(map(place, prompts))
    assert counts["first"] == counts["second"] == counts["not"] > 0
    assert Counter(map(place, draw_prompts("published")))["first"] == 0
    assert set(map(place, draw_prompts("published"))) == {"no swap", "second", "not"}


@pytest.mark.parametrize("order", ORDERS)
def test_answers_are_those_of_the_retrieved_slot(order: Order) -> None:
    """Two ways to the answer: moving the objects, and undoing the swaps of slots."""
    for prompt in draw_prompts(order):
        assert prompt.answer == prompt.story.objects[retrieved_slot(prompt.story, prompt.question)]


def test_stories_may_have_more_boxes() -> None:
    """From the fewest to the most; with three boxes at most, prompts are the default ones."""
    counted = Counter(
        len(prompt.story.boxes) for step in range(STEPS) for prompt in curriculum(Vocabulary(), Recipe(boxes=5), step)
    )
    assert set(counted) == {3, 4, 5}
    assert curriculum(Vocabulary(), Recipe(boxes=BOXES), 1) == curriculum(Vocabulary(), Recipe(), 1)


SHORT = Recipe(steps=4, cool=2, stories=1, rank=2, alpha=4, rate=1e-2)

UNSEEN = Vocabulary().split(HELD_OUT)


def training(recipe: Recipe) -> Training:
    return Training(model(), encoder(), Vocabulary(), recipe, "tiny")


class _Stop(Exception):
    """The plug is pulled."""


def test_the_loss_falls() -> None:
    """The same lessons again and again: what they ask for can be learned by heart."""
    trained = training(replace(SHORT, steps=1000, stories=2, rank=8, alpha=16))
    with attached(trained.model, trained.adapter):
        losses = [trained.step(9).loss for _ in range(25)]  # step 9 is at the full rate
    assert losses[-1] < 0.5 * losses[0]


def is_same(actual: Adapter, expected: Adapter) -> bool:
    return all(agree(a.detach(), b.detach()) for a, b in zip(actual.tensors(), expected.tensors(), strict=True))


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebinding.learned.training.EVERY", 2)
    full = training(SHORT)
    full.run(tmp_path / "whole", lambda number, step: None)

    def pulled(number: int, step: TrainingStep) -> None:
        if number == 3:
            raise _Stop

    with pytest.raises(_Stop):
        training(SHORT).run(tmp_path / "cut", pulled)
    resumed, steps = training(SHORT), []
    resumed.run(tmp_path / "cut", lambda number, step: steps.append(number))
    assert steps == [3, 4]
    assert is_same(resumed.adapter, full.adapter)
    assert not is_same(training(SHORT).adapter, full.adapter)
    assert [step.loss for step in resumed.curve] == pytest.approx([step.loss for step in full.curve], rel=ROUNDING)


def test_notes_of_another_training_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebinding.learned.training.EVERY", 2)
    training(SHORT).run(tmp_path, lambda number, step: None)
    with pytest.raises(ValueError, match="the state of another training"):
        training(replace(SHORT, seed=1)).run(tmp_path, lambda number, step: None)


def test_a_half_written_note_never_takes_the_place_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebinding.learned.training.EVERY", 2)
    training(replace(SHORT, steps=3)).run(tmp_path, lambda number, step: None)
    full = (tmp_path / NOTES).read_bytes()

    def write_half(state: object, path: Path) -> None:
        path.write_bytes(full[: len(full) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.save", write_half)
    monkeypatch.setattr("rebinding.learned.training.EVERY", 3)
    with pytest.raises(OSError, match="No space left"):
        training(replace(SHORT, steps=3)).run(tmp_path, lambda number, step: None)
    assert (tmp_path / NOTES).read_bytes() == full


def test_the_rate_rises_stays_and_falls() -> None:
    recipe = Recipe(steps=100, rate=1.0, cool=50)
    rates = [recipe.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:51] == [1.0] * 42
    assert rates[75] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.02)


STOPPING = replace(SHORT, steps=20, cool=10, accuracy=0.9)


def run_with_checks(folder: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[bool]) -> Training:
    """A training whose checks, one every second step, have these outcomes."""
    monkeypatch.setattr("rebinding.learned.training.EVERY", 2)
    monkeypatch.setattr("rebinding.learned.training.is_learned", lambda *_: outcomes.pop(0))
    trained = training(STOPPING)
    trained.run(folder, lambda number, step: None)
    return trained


def test_training_ends_when_the_wanted_accuracy_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_with_checks(tmp_path, monkeypatch, [False, True])
    assert len(trained.curve) == 4
    assert trained.is_accurate
    assert len(run_with_checks(tmp_path, monkeypatch, []).curve) == 4, "a run that finds its end takes no step"


def test_without_the_wanted_accuracy_training_takes_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_with_checks(tmp_path, monkeypatch, [False] * 10)
    assert len(trained.curve) == 20
    assert not trained.is_accurate


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_check_asks_every_design_for_the_wanted_accuracy(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One design that falls short is enough; the prompts are not those of the evaluation or of a claim."""
    seen: list[Prompt] = []

    def answer(_model: object, _encoder: object, prompts: list[Prompt]) -> Accuracy:
        seen.extend(prompts)
        is_unseen = {word for prompt in prompts for word in prompt.story.objects} <= set(UNSEEN.objects)
        return Accuracy(36 if not is_unseen else int(36 * share), 36)

    monkeypatch.setattr("rebinding.learned.evaluation.accuracy", answer)
    assert is_learned(None, encoder(), Vocabulary(), 0.97) == (share == 1)
    assert len(seen) == 3 * 36
    designs = evaluation_designs(Vocabulary()).values()
    assert not set(seen) & {design.prompt(number) for design in designs for number in range(120)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": "some"}, "no order 'some'"),
        ({"steps": 0}, "steps is 0"),
        ({"rank": 0}, "rank is 0; give 1 or more"),
        ({"boxes": 2}, "boxes is 2; a story has at least 3"),
        ({"cool": 0}, "cool is 0; give 1 or more"),
        ({"accuracy": 0.0}, "accuracy is 0.0; give a share"),
        ({"accuracy": 97.0}, "accuracy is 97.0; give a share"),
    ],
)
def test_a_recipe_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHORT, **wrong)


def test_the_verb_writes_adapter_card_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out, merged = save(tmp_path / "base"), tmp_path / "adapter", tmp_path / "merged"
    sizes = (
        "--steps",
        "3",
        "--stories",
        "1",
        "--rank",
        "2",
        "--prompts",
        "6",
        "--learning-rate",
        "0.05",
        "--license",
        "mit",
    )
    capsys.readouterr()
    assert main(["train", str(base), "--out", str(out), "--save-merged", str(merged), *sizes]) == 0
    output, bars = capsys.readouterr()
    assert bars == ""
    assert "step 3/3  loss" in output
    assert f"judge it with pytest claims --model {out}\n" in output
    stored, merged_model = Card.read(out), load(str(merged), device="cpu")
    assert stored.base == read_adapter(out).base == str(base)
    assert stored.digest.sha256 == load(str(base), device="cpu").fingerprint != merged_model.fingerprint
    assert load(str(out), device="cpu").fingerprint == merged_model.fingerprint
    assert len(stored.curve) == stored.recipe.steps == 3
    assert set(stored.after) == set(evaluation_designs(Vocabulary()))
    assert stored.after == recount(str(merged), 6)
    assert stored.before == recount(str(base), 6)
    assert stored.after != stored.before
    assert (
        f"| published | {stored.before['published']} | {stored.after['published']} |" in (out / CARD_PAGE).read_text()
    )
    assert not (out / NOTES).exists()
    plain = load(str(base), device="cpu").model.get_submodule("model.layers.1.self_attn.q_proj").weight
    pair, scale = read_adapter(out).pairs["model.layers.1.self_attn.q_proj"], read_adapter(out).scale
    weight = merged_model.model.get_submodule("model.layers.1.self_attn.q_proj").weight
    assert agree(weight, plain + scale * pair.up.float() @ pair.down.float())
    assert not torch.equal(weight, plain)


def recount(name: str, n: int) -> dict[str, Accuracy]:
    """Accuracies counted independently: each prompt alone, the answer's logit compared with each other object's."""
    loaded_model = load(name, device="cpu")
    encoder, accuracies = loaded_model.encoder(), {}
    for design_name, stories in evaluation_designs(Vocabulary()).items():
        right = 0
        for encoded in encoder.encode([stories.prompt(number) for number in range(n)]):
            logits = loaded_model.model(torch.tensor([encoded.ids]), use_cache=False).logits[0, -1]
            rivals = [rival for rival in encoded.prompt.story.objects if rival != encoded.prompt.answer]
            best = logits[encoder.answer_token(encoded.prompt.answer)]
            right += all(best > logits[encoder.answer_token(rival)] for rival in rivals)
        accuracies[design_name] = Accuracy(right, n)
    return accuracies
