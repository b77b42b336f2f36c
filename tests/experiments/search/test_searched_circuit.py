"""The circuit that a search finds, by itself: on prompts and in words that the search did not see."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from rebinding.experiments.ablation import Ablation
from rebinding.experiments.search import measure
from rebinding.experiments.search.graph import Graph, Node
from rebinding.experiments.search.request import SearchedCircuit, request_searched_circuit
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.verdicts import GateFailed

N = 12


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:lexical@llama"))


@pytest.fixture(scope="module")
def request_(bench: Workbench) -> SearchedCircuit:
    return request_searched_circuit(bench.prompts, bench.prompts.design("published"), Circuit(()), N)


def test_the_search_saw_neither_the_prompts_nor_their_words(bench: Workbench, request_: SearchedCircuit) -> None:
    searched_words, judged = (
        {word for prompt in bench.prompts.encode(prompt_set).prompts for word in prompt.prompt.story.objects}
        for prompt_set in (request_.searched, request_.prompts)
    )
    assert searched_words
    assert judged
    assert not searched_words & judged
    assert not set(request_.searched.ids) & set(request_.prompts.ids)


def test_the_nodes_are_ablated_like_any_circuit(bench: Workbench, request_: SearchedCircuit) -> None:
    evidence = bench.get(request_)
    heads = Graph(tuple(Node(*node) for node in evidence.settings["nodes"]), ()).circuit().heads
    ablation = Ablation(request_.prompts, request_.means, heads, "random", request_.draws, "role_and_layer")
    second = bench.get(ablation)
    pd.testing.assert_frame_equal(evidence.rows[list(second.rows.columns)], second.rows)
    assert evidence.rows[evidence.rows["variant"] == "circuit"]["hit"].all()


def test_a_search_that_finds_nothing_has_no_circuit(
    bench: Workbench, request_: SearchedCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "search_on", lambda *_: SimpleNamespace(nodes=list))
    with pytest.raises(GateFailed, match="circuit_found") as failed:
        measure.measure_searched_circuit(bench, request_)
    assert failed.value.gate.name == "circuit_found"
