"""Tokens between the swap and the answer, taken from a second prompt: which they are, and what the patch does."""

from __future__ import annotations

import pytest

from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.measure import span_of
from rebinding.experiments.tracing.request import DONORS, request_stored_state
from rebinding.experiments.tracing.summary import becomes_other_object, gate_swap_moves
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure

CONVENTIONS = builtin_procedure("controlled").tracing
N = 6


def bench_of(name: str) -> Workbench:
    return Workbench(load(name))


def request(prompts: Stories, n: int = N):
    return request_stored_state(prompts, prompts.design("published"), Circuit(()), n, conventions=CONVENTIONS)


def test_the_spans_begin_with_the_swap_and_with_the_asked_label() -> None:
    bench = bench_of("planted:pointer@llama")
    for prompt in bench.prompts.encode(request(bench.prompts).prompts).prompts:
        state, question = span_of(prompt, "state"), span_of(prompt, "question")
        assert prompt.pieces[state.start].strip("Ġ▁ ") == "Swap"
        assert (state.stop, question.start) == (prompt.roles["question_box"],) * 2
        assert question.stop == prompt.roles["readout"]


def test_the_second_prompts_have_the_same_swap_or_the_same_objects() -> None:
    bench = bench_of("planted:pointer@llama")
    encoded = bench.prompts.encode(request(bench.prompts).prompts)
    for number, (first, second) in enumerate(zip(encoded.prompts, encoded.counterfactuals, strict=True)):
        own, other = first.prompt.story, second.prompt.story
        if DONORS[number % 2] == "objects":
            assert own.operations == other.operations
            assert not set(own.objects) & set(other.objects)
        else:
            assert own.objects == other.objects
            assert own.operations != other.operations
        assert first.prompt.question == second.prompt.question
        assert first.prompt.answer != second.prompt.answer


@pytest.mark.parametrize(
    ("name", "in_state", "in_question"),
    [
        ("planted:pointer@llama", 0.0, 0.0),
        ("planted:global@llama", 1.0, 1.0),
        ("planted:global+labels@gemma2", 1.0, 1.0),
    ],
)
def test_where_objects_are_stored_they_move_the_answer(name: str, in_state: float, in_question: float) -> None:
    bench = bench_of(name)
    evidence = bench.get(request(bench.prompts))
    assert becomes_other_object(evidence, "state").tolist() == [bool(in_state)] * N
    assert becomes_other_object(evidence, "question").tolist() == [bool(in_question)] * N


def test_the_tokens_of_another_swap_bring_the_answer_of_that_swap() -> None:
    """The context is the same in both prompts, so from the swap on the run is that of the second prompt."""
    bench = bench_of("planted:pointer@llama")
    evidence = bench.get(request(bench.prompts))
    rows = evidence.rows[(evidence.rows["donor"] == "swap") & (evidence.rows["span"] == "state")]
    assert rows["second"].tolist() == [True] * N
    assert gate_swap_moves(evidence).passed


def test_a_patch_that_does_nothing_fails_the_gate() -> None:
    bench = bench_of("planted:pointer@llama")
    evidence = bench.get(request(bench.prompts))
    rows = evidence.rows.assign(own=True)
    gate = gate_swap_moves(type(evidence)(evidence.experiment, rows, evidence.settings))
    assert (gate.name, gate.passed) == ("swap_changes_answer", False)
