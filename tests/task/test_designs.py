"""Designs and tracing modes: every pair that an experiment asks for is what its description says, in every design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.task.boxes import Contains, Move, Put, Remove, Story, StoryError, Swap, labels_of
from rebinding.task.designs import (
    DESIGNS,
    NOISE_KINDS,
    PAIRS,
    TRACING_MODES,
    DesignError,
    DesignName,
    NoiseKind,
    Pair,
    design,
    pair_of,
)
from rebinding.task.prompts import Encoder, Prompt, aligned
from rebinding.task.text import AROUND, WORDINGS, WordingName, render_raw
from tests.task.stories import retrieved_slot

IDS = st.integers(0, 1_000_000)
NAMES = st.sampled_from(DESIGNS)


def slots(prompt: Prompt) -> tuple[int, int | None, int]:
    """Where asked box, partner and answer stand."""
    partner = None if prompt.partner is None else prompt.story.slot(prompt.partner)
    return prompt.query_slot, partner, prompt.answer_slot


@given(IDS, st.integers(2, 11))
def test_published_prompts_have_the_published_slots_and_naming(prompt_id: int, boxes: int) -> None:
    for name, naming in (("published", (1, 0)), ("partner_second", (0, 1))):
        prompt = design(name, boxes=boxes).prompt(prompt_id)
        assert slots(prompt) == (0, 1, 1)
        first, second = naming
        assert prompt.story.operations == (Swap(prompt.story.boxes[first], prompt.story.boxes[second]),)


@given(IDS, st.integers(0, 3), st.sampled_from([None, "before", "after"]), NAMES)
def test_a_chain_of_swaps_is_needed_in_full(prompt_id: int, operations: int, distractor: Any, name: DesignName) -> None:
    """The simulated answer is the one of the readout permutation, and without any link of the chain it changes."""
    prompt = design(name, boxes=7, operations=operations, distractor=distractor).prompt(prompt_id)
    story = prompt.story
    assert len(story.operations) == operations + (distractor is not None)
    assert prompt.answer_slot == retrieved_slot(story, prompt.question)
    for index in range(len(story.operations)):
        shorter = Story(story.contents, story.operations[:index] + story.operations[index + 1 :])
        idle = {"before": 0, "after": operations}.get(distractor) == index
        in_chain = prompt.partner is not None
        assert (shorter.answer(prompt.question) == prompt.answer) is (idle or not in_chain)
    if operations:
        assert prompt.focus == operations - 1 + (distractor == "before")


@given(IDS, NAMES)
def test_a_move_brings_the_partners_object_into_the_emptied_box(prompt_id: int, name: DesignName) -> None:
    prompt = design(name, verb="move").prompt(prompt_id)
    assert list(map(type, prompt.story.operations)) == [Remove, Move]
    assert isinstance(prompt.operation, Move)
    if prompt.partner is None:
        assert prompt.answer_slot == prompt.query_slot
    else:
        assert prompt.partner == prompt.operation.source
        assert prompt.answer_slot == prompt.story.slot(prompt.partner)


@given(IDS, NAMES)
def test_a_box_is_refilled_with_something_new(prompt_id: int, name: DesignName) -> None:
    """The new object is the answer of the box that is named, and in no statement; all other boxes hold their own."""
    prompt = design(name, verb="refill").prompt(prompt_id)
    story = prompt.story
    removed, put = story.operations
    assert isinstance(removed, Remove)
    assert isinstance(put, Put)
    assert removed.box == put.box
    assert removed.object == story.objects[story.slot(put.box)]
    assert put.object not in story.objects
    for slot, box in enumerate(story.boxes):
        assert story.answer(box) == (put.object if box == put.box else story.objects[slot])
    assert (prompt.answer == put.object) == (prompt.question == put.box)


@given(IDS, NAMES, st.integers(3, 5))
def test_a_narrator_changes_nothing_but_the_distances(
    encoder: Encoder, prompt_id: int, name: DesignName, boxes: int
) -> None:
    """The same story; without the narrator's sentences the same text; and prompts stay as long as each other."""
    stories = design(name, boxes=boxes, narrative=True)
    narrated, plain = stories.prompt(prompt_id), design(name, boxes=boxes).prompt(prompt_id)
    assert (narrated.story, narrated.question, narrated.answer) == (plain.story, plain.question, plain.answer)
    text = render_raw(narrated).text
    assert sum(text.count(sentence) for sentence in AROUND) == boxes + 1
    for sentence in AROUND:
        text = text.replace(f" {sentence}", "")
    assert text == render_raw(plain).text
    encoded, following = encoder.encode([narrated, stories.prompt(prompt_id + 1)])
    assert len(encoded) == len(following)
    words = [
        {role: raw.text[slice(*span)] for role, span in raw.spans.items()}
        for raw in (render_raw(narrated), render_raw(plain))
    ]
    assert words[0] == words[1]


@given(IDS, NAMES, st.sampled_from([wording for wording in WORDINGS if wording != "published"]))
def test_a_paraphrase_keeps_roles_and_their_words(prompt_id: int, name: DesignName, wording: WordingName) -> None:
    """The same story in other words; every role stands on the same word, as many words after the one before but for
    the beginning of the question."""
    prompt, plain = (design(name, wording=own).prompt(prompt_id) for own in (wording, "published"))
    assert (prompt.story, prompt.question, prompt.answer) == (plain.story, plain.question, plain.answer)
    rendered = [render_raw(own) for own in (prompt, plain)]
    assert rendered[0].text != rendered[1].text
    assert "contain" not in rendered[0].text
    assert list(rendered[0].spans) == list(rendered[1].spans)  # in the order of the text
    words = [{role: own.text[slice(*span)] for role, span in own.spans.items()} for own in rendered]
    assert words[0] == words[1]
    until = [own.text[: own.spans["swap_period"][1]].split() for own in rendered]
    assert len(until[0]) == len(until[1])


@pytest.mark.parametrize("kind", PAIRS)
def test_both_prompts_of_a_pair_have_the_wording_and_the_narrator(kind: Any) -> None:
    pair = pair_of(design("counterbalanced", wording="stores", narrative=True), 0, kind)
    for prompt in (pair.original, pair.counterfactual):
        text = render_raw(prompt).text
        assert text.count(" stores the ") == 3
        assert "What does Box" in text
        assert any(sentence in text for sentence in AROUND)


def test_an_unknown_wording_is_refused() -> None:
    with pytest.raises(DesignError, match="there is no wording 'hides'; there are published, holds, stores, keeps"):
        design("published", wording="hides")  # type: ignore[arg-type]


@given(prompt_id=IDS, name=NAMES, kind=st.sampled_from(NOISE_KINDS), boxes=st.integers(3, 6))
def test_noise_has_the_same_roles_in_equally_many_tokens(
    encoder: Encoder, prompt_id: int, name: DesignName, kind: NoiseKind, boxes: int
) -> None:
    pair = design(name, boxes=boxes).noise(prompt_id, kind)
    original, noise = encoder.encode([pair.original, pair.counterfactual])
    assert aligned(original, noise)
    assert set(original.roles) == set(noise.roles)
    for role in (*render_raw(pair.original).spans, *({"swap_asked", "swap_partner"} & set(original.roles))):
        assert original.roles[role] == noise.roles[role]


@given(IDS, NAMES, st.integers(3, 6))
def test_rotation_moves_every_statement_and_keeps_the_answer(prompt_id: int, name: DesignName, boxes: int) -> None:
    pair = design(name, boxes=boxes).noise(prompt_id, "rotation")
    before, after = pair.original.story, pair.counterfactual.story
    assert after.contents == before.contents[1:] + before.contents[:1]
    assert after.operations == before.operations
    assert pair.counterfactual.answer == pair.original.answer
    assert not pair.changes_answer


@given(IDS, NAMES, st.integers(3, 6))
def test_objects_dealt_anew_leave_every_box_and_no_object_where_it_was(
    prompt_id: int, name: DesignName, boxes: int
) -> None:
    """The paper's own sentence: the assignment of objects to boxes is another one, and the structure is the same."""
    pair = design(name, boxes=boxes).noise(prompt_id, "objects")
    before, after = pair.original.story, pair.counterfactual.story
    assert (after.boxes, after.operations) == (before.boxes, before.operations)
    assert sorted(after.objects) == sorted(before.objects)
    assert all(old != new for old, new in zip(before.objects, after.objects, strict=True))
    assert pair.changes_answer


def test_objects_are_dealt_in_every_way_in_turn() -> None:
    pairs = [design(boxes=4).noise(number, "objects") for number in range(3)]
    shifts = [
        [pair.original.story.objects.index(object) for object in pair.counterfactual.story.objects] for pair in pairs
    ]
    assert len(set(map(tuple, shifts))) == 3


@given(IDS, NAMES, st.integers(3, 6))
def test_fresh_words_keep_every_slot_and_the_bystanders(prompt_id: int, name: DesignName, boxes: int) -> None:
    pair = design(name, boxes=boxes).noise(prompt_id, "fresh")
    before, after = pair.original.story, pair.counterfactual.story
    assert slots(pair.counterfactual) == slots(pair.original)
    swapped = {before.slot(label) for swap in before.operations for label in (swap.first, swap.second)}  # type: ignore[union-attr]  # swaps only
    for slot, (old, new) in enumerate(zip(before.contents, after.contents, strict=True)):
        if slot in swapped:
            assert new.box not in before.boxes
            assert new.object not in before.objects
        else:
            assert new == old


@given(IDS, NAMES, st.integers(3, 7), st.integers(1, 2))
def test_independent_noise_moves_all_slots_that_matter_and_shares_no_object(
    prompt_id: int, name: DesignName, boxes: int, operations: int
) -> None:
    if boxes < operations + 2:
        boxes = operations + 2
    pair = design(name, boxes=boxes, operations=operations).noise(prompt_id, "independent")
    assert not set(pair.original.story.objects) & set(pair.counterfactual.story.objects)
    for old, new in zip(slots(pair.original), slots(pair.counterfactual), strict=True):
        assert (old is None) is (new is None)
        assert old is None or old != new
    assert pair.changes_answer


def test_independent_noise_covers_all_slots() -> None:
    counts = Counter(slots(design().noise(prompt_id, "independent").counterfactual) for prompt_id in range(300))
    assert set(counts) == {(1, 0, 0), (1, 2, 2), (2, 0, 0)}
    assert min(counts.values()) > 75  # 100 expected of each; five standard deviations are 41
    crossed = design("counterbalanced")
    noise = [slots(crossed.noise(prompt_id, "independent").counterfactual) for prompt_id in range(360)]
    assert {query for query, _, _ in noise} == {answer for _, _, answer in noise} == {0, 1, 2}


def test_the_published_head_role_pairs() -> None:
    """Train id 0, as it stands in an independent regeneration of the published prompts. The mirrored pair starts from
    the circuit's own prompt."""
    control, pointer, mirrored = design().content_control(0), design().pointer(0), design().pointer(0, mirror=True)
    original = Prompt(_story("K shell, B chemical, J boot", ("K", "B")), "B")
    reworded = Prompt(_story("K wheel, B rock, J boot", ("K", "B")), "B")
    assert control == Pair(0, original, reworded, "content_control")
    assert pointer == Pair(0, original, Prompt(_story("B wheel, K rock, J boot", ("B", "K")), "B"), "pointer")
    assert (mirrored.original, mirrored.counterfactual) == (design().prompt(0), reworded)
    for pair, answers in ((pointer, (0, 1)), (mirrored, (1, 0))):
        assert (pair.original.answer_slot, pair.counterfactual.answer_slot) == answers


@given(IDS, NAMES, st.booleans(), st.integers(2, 6))
def test_role_pairs_change_what_they_say(prompt_id: int, name: DesignName, mirror: bool, boxes: int) -> None:
    stories = design(name, boxes=max(boxes, 3))
    control = stories.content_control(prompt_id, mirror=mirror)
    pointer = stories.pointer(prompt_id, mirror=mirror)
    structure = stories.structure_only_pointer(prompt_id, mirror=mirror)
    assert control.original == pointer.original == structure.original
    original = control.original
    assert slots(control.counterfactual) == slots(original)
    assert control.counterfactual.story.operations == original.story.operations
    assert control.counterfactual.answer not in original.story.objects
    query, partner, answer = slots(original)
    for pair in (pointer, structure):
        assert slots(pair.counterfactual) == (partner, query, query)
        assert pair.counterfactual.story.boxes != original.story.boxes
    assert pointer.counterfactual.answer not in original.story.objects
    assert answer == partner
    assert sorted(map(str, structure.counterfactual.story.contents)) == sorted(map(str, original.story.contents))
    assert structure.counterfactual.story.operations == original.story.operations
    assert structure.counterfactual.answer == original.answer
    rewords = name == "published" and not mirror
    assert (pointer.counterfactual.story.operations != original.story.operations) is rewords


@given(IDS, NAMES, st.integers(3, 7), st.sampled_from([0, 1, 2]))
def test_a_direction_prompt_retrieves_its_slot_from_the_same_story(
    prompt_id: int, name: DesignName, boxes: int, operations: int
) -> None:
    stories = design(name, boxes=max(boxes, operations + 2), operations=operations)
    prompts = [stories.direction(prompt_id, slot) for slot in range(stories.boxes)]
    assert [prompt.answer_slot for prompt in prompts] == list(range(stories.boxes))
    assert {prompt.story for prompt in prompts} == {stories.prompt(prompt_id).story}


def test_pairs_can_be_asked_about_every_box() -> None:
    """Partner replaced by the remaining box: the only edit that changes the answers to all three questions."""
    pair = design().tracing(0, "swap_target_box_to_remaining_context_box")
    pairs = [pair.with_query(box) for box in pair.original.story.boxes]
    assert [pair.original.question for pair in pairs] == list(pair.original.story.boxes)
    assert all(pair.changes_answer for pair in pairs)
    assert pair.with_query("K").original.answer == "chemical"


def test_a_design_filters_its_words_by_a_tokenizer(encoder: Encoder) -> None:
    assert design(tokenizer=encoder.tokenizer).prompt(299) == design().prompt(299)
    from rebinding.task.words import OBJECTS, Vocabulary

    words = Vocabulary(objects=("hammock", *OBJECTS))
    assert design(vocabulary=words, tokenizer=encoder.tokenizer).vocabulary.objects == OBJECTS


IMPOSSIBLE: dict[str, tuple[Callable[[], Any], str]] = {
    "name": (lambda: design("balanced"), "no design 'balanced'; the designs are published, partner_second, counterb"),  # type: ignore[arg-type]  # the test
    "split": (lambda: design(split="evaluation"), "published has no split 'evaluation'; it has train, test, none"),
    "27 boxes": (lambda: design(boxes=27), "27 boxes given; a story has 2 to 26"),
    "14 boxes": (lambda: design(boxes=14), "needs 14 different labels and the vocabulary of the design has 13"),
    "negative id": (lambda: design().prompt(-1), "a whole number from 0 on; got -1"),
    "long chain": (lambda: design(operations=3), "a chain of 3 operations needs 4 boxes; got 3"),
    "refilled twice": (lambda: design(verb="refill", operations=2), "a box is refilled once.* give 1"),
    "distractor": (lambda: design(distractor="after"), "need at least 5 boxes then, got 3"),
    "two boxes": (lambda: design("counterbalanced", boxes=2), "leave no bystander to ask about.* at least 3 boxes"),
    "no donors": (lambda: design(boxes=13).noise(0, "fresh"), "needs 14 different labels"),
    "noise": (lambda: design().noise(0, "loud"), "no noise 'loud'; .* rotation, fresh, objects, independent"),  # type: ignore[arg-type]  # the test
    "slot": (lambda: design().direction(0, 3), "no box of prompt 0 holds the object of slot 3"),
    "emptied slot": (lambda: design(verb="move").direction(0, 0), "no box of prompt 0 holds the object of slot 0"),
    "roles of a chain": (lambda: design(operations=2).pointer(0), "head-role pairs need operations=1"),
    "no remaining box": (lambda: design(boxes=2).tracing(0, "swap_target_object_with_remaining_context_object"), "add"),
    "mode": (lambda: design().tracing(0, "names"), "no tracing mode 'names'; the modes are context_only, swap_only"),
    "nothing to edit": (lambda: design(operations=0).tracing(0, "swap_only"), "the design has operations=0"),
}


@pytest.mark.parametrize(("make", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_designs_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((DesignError, StoryError), match=message):
        make()


def _story(contents: str, swap: tuple[str, str]) -> Story:
    return Story(tuple(Contains(*pair.split()) for pair in contents.split(", ")), (Swap(*swap),))


# Tracing modes: the edits of the published table, their tokens, and what becomes of the answer

# For the published design with three boxes (asked box 0, partner 1, remaining 2): the roles that differ, and the slot
# of the counterfactual's answer ("donor": an object from outside; None: no answer). Typed from the published table.
TABLE: dict[str, tuple[set[str], int | str | None]] = {
    "context_only": ({"context_box[0]"}, None),
    "swap_only": ({"swap_second"}, 0),
    "context_target_box": ({"context_box[1]"}, 0),
    "swap_target_box": ({"swap_first"}, 0),
    "swap_target_box_to_remaining_context_box": ({"swap_first"}, 2),
    "context_target_object_and_swap_target_box_to_remaining_context_box": ({"context_object[1]", "swap_first"}, 2),
    "context_target_box_and_swap_query_box": ({"context_box[1]", "swap_second"}, 0),
    "context_and_swap": ({"context_box[0]", "swap_second"}, None),
    "context_and_swap_target_box": ({"context_box[1]", "swap_first"}, 1),
    "target_box": ({"context_object[1]"}, "donor"),
    "query_box": ({"context_object[0]"}, 1),
    "context_target_object_and_swap_query_box": ({"context_object[1]", "swap_second"}, 0),
    "swap_target_object_with_remaining_context_object": ({"context_object[1]", "context_object[2]"}, 2),
    "swap_partner": ({"question_box"}, 0),
}


@pytest.mark.parametrize("mode", sorted(TRACING_MODES.keys() - {"no_swap"}))
def test_a_mode_edits_the_published_words_only(encoder: Encoder, mode: str) -> None:
    roles, answer = TABLE[mode]
    for prompt_id in range(20):
        pair = design(split="test").tracing(prompt_id, mode)
        original, counterfactual = encoder.encode([pair.original, pair.counterfactual])
        assert pair.original == design(split="test").prompt(prompt_id)
        assert aligned(original, counterfactual) == tuple(sorted(original.roles[role] for role in roles))
        if answer is None:
            assert not pair.counterfactual.answerable
        elif answer == "donor":
            assert pair.counterfactual.answer not in pair.original.story.objects
        else:
            assert isinstance(answer, int)
            assert pair.counterfactual.answer == pair.original.story.objects[answer]


@given(st.integers(0, 100_000), st.sampled_from(DESIGNS), st.sampled_from(sorted(TRACING_MODES)), st.integers(3, 6))
def test_a_mode_says_what_becomes_of_the_answer(prompt_id: int, name: DesignName, mode: str, boxes: int) -> None:
    declared = TRACING_MODES[mode]
    pair = design(name, boxes=boxes).tracing(prompt_id, mode)
    assert pair.changes_answer is declared.changes_answer
    assert pair.counterfactual.answerable is (declared.answer != "undefined")
    length = len(render_raw(pair.original).spans) == len(render_raw(pair.counterfactual).spans)
    assert length is declared.keeps_length


@given(st.integers(0, 100_000), st.sampled_from(sorted(TABLE)), st.sampled_from(["before", "after"]))
def test_a_distractor_changes_no_answer_and_is_never_edited(prompt_id: int, mode: str, distractor: str) -> None:
    plain = design(boxes=5).tracing(prompt_id, mode)
    distracted = design(boxes=5, distractor=distractor).tracing(prompt_id, mode)  # type: ignore[arg-type]  # one of two
    for plain_prompt, prompt in (
        (plain.original, distracted.original),
        (plain.counterfactual, distracted.counterfactual),
    ):
        assert plain_prompt.story.contents[:3] == prompt.story.contents[:3]
        assert _answer(plain_prompt) == _answer(prompt)
        extra = prompt.story.operations[0 if distractor == "before" else -1]
        assert labels_of(extra) == distracted.original.story.boxes[3:]
        assert prompt.operation == plain_prompt.operation


def test_removing_the_swap_leaves_the_story_without_operations() -> None:
    pair = design(boxes=5, distractor="after").tracing(7, "no_swap")
    assert pair.counterfactual.story.operations == ()
    assert pair.counterfactual.story.contents == pair.original.story.contents
    assert pair.counterfactual.answer == pair.original.story.objects[0]


def test_bystander_ids_are_traced_on_a_swapped_box() -> None:
    """In the counterbalanced design a third of the ids asks about a bystander; a mode needs a swapped box."""
    stories = design("counterbalanced")
    bystanders = [prompt_id for prompt_id in range(36) if stories.prompt(prompt_id).partner is None]
    assert len(bystanders) == 12
    for prompt_id in bystanders:
        pair = stories.tracing(prompt_id, "swap_only")
        assert pair.original.story == stories.prompt(prompt_id).story
        assert pair.original.partner is not None


def _answer(prompt: Prompt) -> str | None:
    return prompt.answer if prompt.answerable else None
