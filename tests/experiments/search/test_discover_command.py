"""`discover --positions all`, and the circuit that it finds, on prompts and words that the search did not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.cli.commands import main
from rebinding.experiments.ablation import Ablation, evaluate, mean_z
from rebinding.experiments.search import graph, measure, search
from rebinding.experiments.search.graph import Graph, Node
from rebinding.experiments.search.request import SearchedCircuit, request_searched_circuit
from rebinding.experiments.tokens import full_model
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper import circuit
from rebinding.paper.circuit import Circuit
from rebinding.verdicts import GateFailed

NAME = "planted:lexical@llama"
OPTIONS = ("discover", "--positions", "all", "--model", NAME, "--samples", "36", "--share", "0.002", "--block", "36")


def test_a_saved_circuit_works_alone_and_its_graph_is_compared(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """No minutes: nothing is found, and it says so. Then all of it; then the same from the store, without a model run.
    The circuit file does the task alone, everything else held at its mean."""
    store_options = ("--store", str(tmp_path))
    assert main([*OPTIONS, *store_options, "--minutes", "0"]) == 0
    assert "0 minutes are up" in capsys.readouterr().out
    circuit_file, graph_file = tmp_path / "c.json", tmp_path / "g.json"
    arguments = [*OPTIONS, *store_options, "--save", str(circuit_file), "--graph", str(graph_file)]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr(search, "effect_via_receivers", lambda *_: pytest.fail("a block was computed again"))
    assert main([*arguments, "--compare", str(graph_file)]) == 0
    second_output = capsys.readouterr().out
    assert second_output.startswith(output.rstrip())
    assert "compared with g.json: found on 36 prompts, 36 of them among the 36 of this run" in second_output
    loaded_model = load(NAME)
    loaded_circuit = circuit.load(circuit_file, owner_of(loaded_model))
    found_graph = graph.load(graph_file, owner_of(loaded_model))
    assert loaded_circuit == found_graph.circuit()
    graph.save(found_graph, replace(owner_of(loaded_model), fingerprint="0" * 64), graph_file)
    assert main([*OPTIONS, "--no-store", "--minutes", "0", "--compare", str(graph_file)]) == 2
    assert "belongs to" in capsys.readouterr().err
    bench = Workbench(loaded_model)
    prompts = bench.prompts
    design = prompts.design("counterbalanced", split="evaluation")
    roles = sorted({head.role for head in loaded_circuit.heads})
    encoded = prompts.encode(prompts.draw_with(design, 300, 18, roles)).prompts
    answers = prompts.answers(encoded)
    means = mean_z(bench.surgeon, prompts.encode(prompts.draw(design, range(100, 136))).prompts)
    rows = evaluate(
        bench.surgeon, encoded, answers, range(18), {"it": loaded_circuit}, means, mean_set="counterbalanced"
    ).rows
    full = full_model(bench.surgeon, encoded, answers, range(18)).rows
    assert rows["hit"].mean() == full["hit"].mean() == 1.0


@pytest.mark.parametrize(
    "option", ["--graph g.json", "--compare g.json", "--minutes 3", "--share 0.1", "--min-attention 0.5",
               "--screen none"],
)  # fmt: skip
def test_options_of_the_search_are_refused_without_it(option: str, capsys: Any) -> None:
    assert main(["discover", "--model", NAME, "--no-store", *option.split()]) == 2
    assert f" {option.split()[0]}: the stages have no such option; add --positions all" in capsys.readouterr().err


def test_options_of_the_stages_are_refused_with_the_search(capsys: Any) -> None:
    assert main([*OPTIONS, "--no-store", "--minutes", "0", "--top-k", "9,9,9,9,9", "--design", "published"]) == 2
    assert "leave --design, --top-k out, or --positions all" in capsys.readouterr().err


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


def test_a_searched_circuit_is_ablated_like_any_other(bench: Workbench, request_: SearchedCircuit) -> None:
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
