"""A circuit where nothing was swapped: which prompts are asked, which heads are left, and whether they answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rebinding.experiments.static.request import OtherStories, about_bystander, without_swap
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


def asked(make: Callable[..., OtherStories], bench: Workbench, heads: Circuit) -> tuple[OtherStories, list]:
    request = make(bench.prompts, bench.prompts.design("published"), heads, N)
    return request, [one.prompt for one in bench.prompts.drawn(request.prompts).prompts]


def test_no_question_is_about_a_swapped_box(bench: Workbench, heads: Circuit) -> None:
    """Every slot is asked about equally often; with a swap, the two others are swapped."""
    for make, swaps in ((without_swap, 0), (about_bystander, 1)):
        request, prompts = asked(make, bench, heads)
        assert len(prompts) == request.n == N
        assert all(len(one.story.operations) == swaps and one.partner is None for one in prompts)
        slots = [one.answer_slot for one in prompts]
        assert all(slots.count(slot) == N / 3 for slot in range(3))
        assert all(one.asked_slot == one.answer_slot for one in prompts)


def test_heads_whose_tokens_are_not_there_are_held(bench: Workbench, heads: Circuit) -> None:
    """Without a swap neither its labels (D) nor a partner (E) are there; a bystander's story has the labels."""
    makes = (without_swap, about_bystander)
    left = {make: {head.group for head in asked(make, bench, heads)[0].circuit} for make in makes}
    assert left == {without_swap: set("ABC"), about_bystander: set("ABCD")}


@pytest.mark.parametrize("make", [without_swap, about_bystander])
def test_the_planted_circuit_answers_by_its_own_slot(
    make: Callable[..., OtherStories], bench: Workbench, heads: Circuit
) -> None:
    """The means are those of such prompts, and no prompt is judged that they were taken from."""
    request, _ = asked(make, bench, heads)
    assert not set(request.means.prompts.ids) & set(request.prompts.ids)
    assert request.means.prompts.operations == request.prompts.operations
    rows = bench.get(request).rows
    for which, right in (("full", True), ("circuit", True), ("random", False)):
        mine = rows[rows["which"] == which]
        assert (mine["hit"].mean() == 1) == right
    assert rows["draw"].nunique() == 11  # ten, and none
