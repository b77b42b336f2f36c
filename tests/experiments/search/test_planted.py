"""On a plant the true graph is known from its lines: the search returns it, without being told where to look, and so
does `discover --positions all`. Its circuit does the task alone, on prompts and words that the search did not see."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks.against_gradients import approximated, best, rates, searched
from benchmarks.edges import Link
from rebinding.cli.commands import main
from rebinding.experiments.ablation import Ablation, evaluate, mean_z
from rebinding.experiments.paths.measure import discover, to_noise_pairs
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search import graph, measure, search
from rebinding.experiments.search.graph import Graph, Node
from rebinding.experiments.search.pairs import SearchPairs
from rebinding.experiments.search.request import SearchedCircuit, SearchSettings, request_searched_circuit
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.experiments.tokens import full_model
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper import circuit
from rebinding.paper.circuit import Circuit
from rebinding.planted import ARCHITECTURES, MECHANISMS, Plant
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import ALL_POSITIONS, Settings
from rebinding.study.study import Study
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder
from rebinding.verdicts import GateFailed
from tests.experiments.setup import noise_pairs
from tests.planted.graph import Wired, wired
from tests.planted.runs import plant

SHARE = 0.002
"""Of the whole. The weakest planted node is worth 0.005 of it; a decoy 1e-5 at most."""
PROMPTS = 72
"""Two balanced blocks, eight of each pair of slots: with one, the weakest planted link is not surely there."""
SETTINGS = SearchSettings(SHARE, block=36)
NEGLIGIBLE = 1e-3
"""Of attention. At softness 0.5 links that are heard with 0.06 move 0.009 of the whole; so those that are heard with
less than 0.001 move less than 0.00015 of it, and an edge needs 0.0002."""
PLANTS = ("pointer@llama", "pointer+at_stop@llama", *(f"{m}@{a}" for m in MECHANISMS for a in ARCHITECTURES))
VARIED_SETTINGS = ("decoys=0", "decoys=10", "softness=0.5", "softness=1")
"""Options of a plant: how many heads have random weights (all that fit, unless it is said), how soft softmaxes are."""


@cache
def make_pairs(name: str, prompts: int = PROMPTS) -> SearchPairs:
    return noise_pairs(Encoder(plant(name).tokenizer), range(prompts))


@cache
def find_graph(name: str, settings: SearchSettings = SETTINGS) -> Graph:
    model, pairs = plant(name).model, make_pairs(name)
    steps = MeasuredSteps(TorchSurgeon(model, derive(model)), pairs, settings.block)
    return Search(pairs, settings, steps).graph()


def merge_by_place(pairs: SearchPairs, graph: Graph) -> Wired:
    """What was found, every node at all the places where its token stands."""

    def places(node: Node | None) -> set[Node | None]:
        if node is None:
            return {None}
        return {node._replace(token=pairs.places[at]) for at in pairs.at(node.token).tolist() if at >= 0}

    nodes = {place for node in graph.nodes for place in places(node)}
    links = {(s, r, e.component) for e in graph.edges for s in places(e.sender) for r in places(e.receiver)}
    return Wired(frozenset(nodes), frozenset(links))  # type: ignore[arg-type]  # no None among nodes


def kinds(graph: Wired) -> set[tuple[object, ...]]:
    """Links without the number of the statement."""

    def kind(node: Node | None) -> object:
        return node and (node.layer, node.head, node.token.split("[")[0])

    return {(kind(sender), kind(receiver), component) for sender, receiver, component in graph.links}


def assert_planted(name: str, pairs: SearchPairs, graph: Graph) -> None:
    """The same nodes, at the same tokens; the same links, component by component; nothing else, of 35 to 44 decoys."""
    true, found = wired(plant(name), pairs.clean[0]), merge_by_place(pairs, graph)
    assert found.nodes == true.nodes
    assert kinds(found) == kinds(true)


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys((*PLANTS, *(f"pointer@llama?{option}" for option in VARIED_SETTINGS))))
def test_the_planted_graph_is_found(name: str) -> None:
    assert_planted(name, make_pairs(name), find_graph(name))


@pytest.mark.slow
def test_negligible_attention_passes_nothing_without_softness() -> None:
    """Lines that read a token with little attention read it with next to none where softmaxes are hard: such links are
    planted, and too weak to be kept. All others are found, and nothing else."""
    name = "pointer@llama?softness=0"
    true, graph = wired(plant(name), make_pairs(name).clean[0]), merge_by_place(make_pairs(name), find_graph(name))
    assert graph.nodes == true.nodes
    sources = attention(name)
    unheard = {
        (sender, receiver, component)
        for sender, receiver, component in true.links
        if receiver and component != "q" and sources(receiver, sender.token) < NEGLIGIBLE
    }
    assert unheard
    assert kinds(graph) == kinds(Wired(true.nodes, true.links - unheard))


def attention(name: str) -> Callable[[Node, str], float]:
    """The most that a head at a token gives to a place in any prompt, as the library's eager model has it."""
    pairs, model = make_pairs(name), copy.deepcopy(plant(name).model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = [model(torch.tensor([prompt.ids]), output_attentions=True).attentions for prompt in pairs.clean]

    def max_attention(receiver: Node, place: str) -> float:
        targets, sources = pairs.at(receiver.token).tolist(), pairs.at(place).tolist()
        cells = zip(maps, targets, sources, strict=True)
        return max(float(layers[receiver.layer][0, receiver.head, to, source]) for layers, to, source in cells)

    return max_attention


@pytest.mark.slow
def test_screening_loses_nothing() -> None:
    """Every token, attended or not, every row, whatever it moves: the same nodes and links."""
    exact = find_graph("lexical@gemma3", SearchSettings(SHARE, min_attention=0.0, screen="none", block=36))
    screened = find_graph("lexical@gemma3")
    assert exact.nodes == screened.nodes
    assert [edge[:3] for edge in exact.edges] == [edge[:3] for edge in screened.edges]


@pytest.mark.slow
def test_the_stages_find_no_d_at_the_full_stop() -> None:
    """Told to look at the swap's labels, they find nobody there; the search finds all four heads at the full stop."""
    loaded_model = plant("pointer+at_stop@llama")
    encoder, surgeon = Encoder(loaded_model.tokenizer), TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    prompts = Stories(encoder)
    noise = prompts.draw(design("partner_second"), range(9), ("noise", "independent"))
    pairs = to_noise_pairs(encoder, prompts.encode(noise))
    assert set(discover(surgeon, pairs).circuit.groups) == {"A", "B", "C"}
    names = ("first label", "last label", "last slot", "first slot")
    planted = {Node(*loaded_model.heads[name], "swap_period") for name in names}
    assert planted == {node for node in find_graph("pointer+at_stop@llama").nodes if node.token.startswith("swap")}


FIRST, SECOND = 0, 36
"""Balanced blocks of 36 that share no prompt."""


@pytest.fixture(scope="module")
def loaded_model() -> Plant:
    return plant("lexical@llama")


@pytest.fixture(scope="module")
def first_search(loaded_model: Plant) -> tuple[frozenset[Link], Search]:
    return searched(loaded_model, FIRST)


@pytest.mark.slow
def test_every_edge_is_found_again(loaded_model: Plant, first_search: tuple[frozenset[Link], Search]) -> None:
    second, second_search = searched(loaded_model, SECOND)
    assert not set(second_search.pairs.ids) & set(first_search[1].pairs.ids)
    assert second == first_search[0] != frozenset()


@pytest.mark.slow
def test_gradients_tell_the_same_edges(loaded_model: Plant, first_search: tuple[frozenset[Link], Search]) -> None:
    """A plant is nearly linear: at its best threshold the approximation has them all, and nothing else. With the search
    it shares the recorded prompts only."""
    edges, search = first_search
    sizes = approximated(loaded_model, search)
    assert len(sizes) > 100 * len(edges)  # of so many
    assert rates(best(sizes, edges), edges) == (1.0, 1.0)


NAME = "planted:lexical@llama"


@pytest.mark.slow
def test_the_circuit_of_a_case_is_the_searched_one() -> None:
    """Nothing of what was planted is told to it; it has the planted heads and no other, each at a token where it was
    planted. Its letters say where a head stands."""
    spec = parse_model(NAME)
    model = ModelUnderTest(spec, Settings(models=(spec,), circuit=ALL_POSITIONS))
    study = Study.of(model)
    circuit, planted = study.circuit, model.plant
    assert planted is not None
    assert {(head.layer, head.head) for head in circuit.heads} == {(head.layer, head.head) for head in planted.circuit}
    roles = {name: {head.role for head in circuit.heads if head.group == name} for name in circuit.groups}
    assert roles["D"] == {head.role for head in planted.circuit if head.role.startswith("swap")}
    assert {"A", "B", "C", "D", "E"} == set(roles)
    assert study.has_discovered_circuit


OPTIONS = (
    "discover",
    "--positions",
    "all",
    "--model",
    NAME,
    "--samples",
    "36",
    "--share",
    "0.002",
    "--block",
    "36",
)


def test_a_saved_circuit_works_alone_and_its_graph_is_compared(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """No minutes: nothing is found, and it says so. Then all that was planted; then the same from the store, without a
    model run. The circuit file does the task alone, everything else held at its mean."""
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
    assert_planted("lexical@llama", make_pairs("lexical@llama", 36), found_graph)
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
               "--screen none", "--mlps"],
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


def test_the_command_searches_mlps_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Through requests; MLPs of a plant do nothing, so the nodes are those of a search of heads."""
    nodes = []
    for own in ([], ["--mlps"]):
        words = ["discover", "--model", NAME, "--positions", "all", "--samples", "12", "--no-store", "--json", *own]
        assert main(words) == 0
        graph = json.loads(capsys.readouterr().out)
        assert graph["settings"]["mlps"] == bool(own)
        nodes.append(graph["nodes"])
    assert nodes[0] == nodes[1] != []
