"""A circuit in questions about unswapped boxes: the prompts, the remaining heads, and whether they answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rebinding.experiments.static import (
    UnswappedQuestions,
    request_bystander_questions,
    request_stories_without_swap,
)
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.planted import build

N = 9


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:pointer"))


@pytest.fixture(scope="module")
def heads() -> Circuit:
    return Circuit(build("pointer").circuit)


def make_request(
    make: Callable[..., UnswappedQuestions], bench: Workbench, heads: Circuit
) -> tuple[UnswappedQuestions, list]:
    request = make(bench.prompts, bench.prompts.design("published"), heads, N)
    return request, [encoded.prompt for encoded in bench.prompts.encode(request.prompts).prompts]


def test_no_question_is_about_a_swapped_box(bench: Workbench, heads: Circuit) -> None:
    """Every slot is asked about equally often; with a swap, the two others are swapped."""
    for make, swaps in ((request_stories_without_swap, 0), (request_bystander_questions, 1)):
        request, prompts = make_request(make, bench, heads)
        assert len(prompts) == request.n == N
        assert all(len(prompt.story.operations) == swaps and prompt.partner is None for prompt in prompts)
        slots = [prompt.answer_slot for prompt in prompts]
        assert all(slots.count(slot) == N / 3 for slot in range(3))
        assert all(prompt.query_slot == prompt.answer_slot for prompt in prompts)


def test_heads_without_their_token_are_ablated(bench: Workbench, heads: Circuit) -> None:
    """Without a swap neither its labels (D) nor a partner (E) are there; a bystander's story has the labels."""
    makers = (request_stories_without_swap, request_bystander_questions)
    groups = {make: {head.group for head in make_request(make, bench, heads)[0].circuit} for make in makers}
    assert groups == {request_stories_without_swap: set("ABC"), request_bystander_questions: set("ABCD")}


@pytest.mark.parametrize("make", [request_stories_without_swap, request_bystander_questions])
def test_the_planted_circuit_answers_by_its_own_slot(
    make: Callable[..., UnswappedQuestions], bench: Workbench, heads: Circuit
) -> None:
    """The means are those of such prompts, and no prompt is judged that they were taken from."""
    request, _ = make_request(make, bench, heads)
    assert not set(request.means.prompts.ids) & set(request.prompts.ids)
    assert request.means.prompts.operations == request.prompts.operations
    rows = bench.get(request).rows
    for variant, right in (("full", True), ("circuit", True), ("random", False)):
        part = rows[rows["variant"] == variant]
        assert (part["hit"].mean() == 1) == right
    assert rows["draw"].nunique() == 11  # ten, and none
