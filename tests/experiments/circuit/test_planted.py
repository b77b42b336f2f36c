"""On a planted model: known blind spots of the published choices, pruning, and questions about unswapped boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from rebinding.cli.discover import with_top_k
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import circuit_after_pruning, circuit_after_walk, circuit_works_alone
from rebinding.experiments.paths.measure import discover, to_noise_pairs
from rebinding.experiments.paths.request import PAPER, PAPER_LITERAL, PathSettings, Stage, conventions_of_plant
from rebinding.experiments.static import UnswappedQuestions, request_bystander_questions, request_stories_without_swap
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import CircuitConventions, builtin_procedure
from rebinding.planted import build
from rebinding.task.designs import design

CONTROLLED = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
N_QUESTIONS = 9
Groups = dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:pointer"))


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return Circuit(build("pointer").circuit)


def groups_of(circuit: Circuit) -> Groups:
    return {name: sorted(circuit.group(name)) for name in circuit.groups}


@pytest.fixture(scope="module")
def find_groups(bench: Workbench, circuit: Circuit) -> Callable[..., Groups]:
    """Discover groups with as many heads each as were planted."""
    sizes = {name: len(heads) for name, heads in groups_of(circuit).items()}

    def find(name: str, noise: str, stages: Sequence[Stage] = PAPER, n: int = 18) -> Groups:
        top_k = ",".join(str(sizes[stage.group]) for stage in stages)
        request = bench.prompts.draw(design(name), range(n), ("noise", noise))  # type: ignore[arg-type]  # a test parameter
        pairs = to_noise_pairs(bench.prompts.encoder, bench.prompts.encode(request))
        settings = PathSettings("all", "head")
        return groups_of(discover(bench.surgeon, pairs, with_top_k(tuple(stages), top_k), settings=settings).circuit)

    return find


@pytest.mark.parametrize(
    ("name", "noise", "found"),
    [("partner_second", "rotation", ""), ("published", "rotation", ""), ("published", "fresh", "A"),
     ("published", "objects", "A"), pytest.param("published", "independent", "ABC", marks=pytest.mark.slow)],
)  # fmt: skip
def test_published_noise_and_order_of_names_are_blind_to_some_groups(
    name: str, noise: str, found: str, circuit: Circuit, find_groups: Callable[..., Groups]
) -> None:
    """Rotation keeps the answer, so no head can be seen to lose it; fresh words keep the slots, and so do objects dealt
    anew, the paper's own sentence: only A is seen. A partner named first cannot know whom it is swapped with: nothing
    is sent from there, and D and E are empty."""
    planted = groups_of(circuit)
    assert find_groups(name, noise) == {group: planted[group] for group in found}


def test_the_papers_stage_d_finds_nothing_when_heads_are_frozen(
    circuit: Circuit, find_groups: Callable[..., Groups]
) -> None:
    """C's query at the question box cannot receive the swap label while every other head is frozen."""
    result = find_groups("partner_second", "independent", PAPER_LITERAL)
    assert "D" not in result
    assert result["C"] == groups_of(circuit)["C"]


HEADS = (CircuitHead("A", 9, 1, "readout"), CircuitHead("B", 7, 2, "readout"), CircuitHead("C", 5, 3, "question_box"))


def made_up_walks(circuit: float, full: float) -> Evidence:
    """One walk in which the middle head goes, and one in which all go."""
    rows = [
        {
            **head._asdict(), "order": order, "full_model": full, "before": circuit - 0.1 * number, "drop": 0.0,
            "removed": order == 1 or number == 1,
        }
        for order in (0, 1)
        for number, head in enumerate(HEADS)
    ]  # fmt: skip
    return Evidence("pruning", pd.DataFrame(rows), {})


@pytest.mark.parametrize(("score", "is_kept"), [(5.0, True), (4.9, False), (-3.0, False)])
def test_a_circuit_is_pruned_if_it_has_half_of_the_models_score(score: float, is_kept: bool) -> None:
    walks = made_up_walks(score, full=10.0)
    assert circuit_works_alone(walks) is is_kept
    assert circuit_after_walk(walks).heads == (HEADS[0], HEADS[2])
    assert circuit_after_pruning(walks).heads == ((HEADS[0], HEADS[2]) if is_kept else HEADS)


def prune(bench: Workbench, circuit: Circuit, conventions: CircuitConventions, *, n: int) -> Evidence:
    """Walk in the circuit's own order, and in one other."""
    request = request_pruning(bench.prompts, circuit, conventions, n=n)
    chosen = bench.prompts.draw(bench.prompts.design(conventions.design), request.prompts.ids[: 2 * n])
    return bench.get(replace(request, orders=2, prompts=chosen))


def test_a_circuit_that_does_not_work_alone_is_not_pruned(bench: Workbench, circuit: Circuit) -> None:
    """The planted circuit stands alone; without C, which tells B where to look, it does not, and the walk would empty
    it of heads that do what they did before."""
    half = circuit.without(circuit.groups["C"])
    of_whole, of_half = (prune(bench, heads, CONTROLLED, n=12) for heads in (circuit, half))
    assert circuit_works_alone(of_whole)
    assert circuit_after_pruning(of_whole) == circuit_after_walk(of_whole)
    assert not circuit_works_alone(of_half)
    assert circuit_after_pruning(of_half) == half
    assert len(circuit_after_walk(of_half).heads) < len(half.heads)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "groups"), [("counterbalanced", "ABCD"), ("published", "AB")])
def test_published_means_hide_the_heads_that_find_the_slot(
    name: str, groups: str, bench: Workbench, circuit: Circuit
) -> None:
    """Counterbalanced: A to D stay. Published: the mean says "go to slot 1", and who finds the slot looks idle."""
    published = replace(CONTROLLED, design=name, means=name, prune_by="label_logit", prune_step=0.01)  # type: ignore[arg-type]  # a test parameter
    assert set(circuit_after_walk(prune(bench, circuit, published, n=18)).groups) == set(groups)


@pytest.mark.parametrize(
    ("make", "swaps", "groups"), [(request_stories_without_swap, 0, "ABC"), (request_bystander_questions, 1, "ABCD")]
)
def test_no_question_is_about_a_swapped_box(
    make: Callable[..., UnswappedQuestions], swaps: int, groups: str, bench: Workbench, circuit: Circuit
) -> None:
    """Every slot is asked about equally often; with a swap, the two others are swapped. The means are those of other
    such prompts. Heads whose token is not in the
    prompts are ablated: without a swap neither its labels (D) nor a partner (E) are there."""
    request = make(bench.prompts, bench.prompts.design("published"), circuit, N_QUESTIONS)
    assert {head.group for head in request.circuit} == set(groups)
    prompts = [encoded.prompt for encoded in bench.prompts.encode(request.prompts).prompts]
    assert len(prompts) == request.n == N_QUESTIONS
    assert all(len(prompt.story.operations) == swaps and prompt.partner is None for prompt in prompts)
    assert sorted(prompt.answer_slot for prompt in prompts) == [0] * 3 + [1] * 3 + [2] * 3
    assert all(prompt.query_slot == prompt.answer_slot for prompt in prompts)
    assert not set(request.means.prompts.ids) & set(request.prompts.ids)
    assert request.means.prompts.operations == request.prompts.operations == swaps
