"""A circuit where nothing was swapped: which prompts are asked, which heads are left, and what is found there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import Elsewhere, Paths
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build
from rebinding.study.bench import Bench
from rebinding.study.circuit import of_a_plant
from rebinding.study.static import about_bystander, static_circuit, without_swap
from rebinding.subjects import load

N = 9
WAY = of_a_plant(given("controlled").circuit, "controlled")


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(load("planted:pointer"))


@pytest.fixture(scope="module")
def heads() -> Circuit:
    return Circuit(build("pointer").circuit)


def asked(make: Callable[..., Elsewhere], bench: Bench, heads: Circuit) -> tuple[Elsewhere, list]:
    request = make(bench, bench.design("published"), heads, N)
    return request, [one.prompt for one in bench.drawn(request.prompts).prompts]


def test_no_question_is_about_a_swapped_box(bench: Bench, heads: Circuit) -> None:
    """Every slot is asked about equally often; with a swap, the two others are swapped."""
    for make, swaps in ((without_swap, 0), (about_bystander, 1)):
        request, prompts = asked(make, bench, heads)
        assert len(prompts) == request.n == N
        assert all(len(one.story.operations) == swaps and one.partner is None for one in prompts)
        slots = [one.answer_slot for one in prompts]
        assert all(slots.count(slot) == N / 3 for slot in range(3))
        assert all(one.asked_slot == one.answer_slot for one in prompts)


def test_heads_whose_tokens_are_not_there_are_held(bench: Bench, heads: Circuit) -> None:
    """Without a swap neither its labels (D) nor a partner (E) are there; a bystander's story has the labels."""
    makes = (without_swap, about_bystander)
    left = {make: {head.group for head in asked(make, bench, heads)[0].circuit} for make in makes}
    assert left == {without_swap: set("ABC"), about_bystander: set("ABCD")}


@pytest.mark.parametrize("make", [without_swap, about_bystander])
def test_the_planted_circuit_answers_by_its_own_slot(
    make: Callable[..., Elsewhere], bench: Bench, heads: Circuit
) -> None:
    """The means are those of such prompts, and no prompt is judged that they were taken from."""
    request, _ = asked(make, bench, heads)
    assert not set(request.means.prompts.ids) & set(request.prompts.ids)
    assert request.means.prompts.operations == request.prompts.operations
    rows = bench.measured(request).rows
    for which, right in (("full", True), ("circuit", True), ("random", False)):
        mine = rows[rows["which"] == which]
        assert (mine["hit"].mean() == 1) == right
    assert rows["draw"].nunique() == 11  # ten, and none


def test_static_tracking_is_found_in_four_groups(bench: Bench, heads: Circuit) -> None:
    """`pointer` without a swap: its own A and B; of C the head that takes the own slot twice, not the one that takes
    it away once, without which there would be more of it; and at the box's own label the anchors, which write its slot.
    (These are E, and act at the partner's label, in the circuit for swaps.)"""

    def ask(make: Callable[..., Paths]) -> Evidence:
        return bench.measured(make(bench, bench.design("published"), Circuit(()), N))

    found = static_circuit(ask, WAY).circuit
    for group in "AB":
        assert set(found.group(group)) == set(heads.group(group)), group
    assert found.group("C") == (build("pointer").heads["pair"],)
    assert set(found.group("D")) == set(heads.group("E"))
    assert {head.role for head in found.heads if head.group == "D"} == {"context_asked"}
