"""On a plant the true graph is known from its lines: the search returns it, without being told where to look."""

from __future__ import annotations

from functools import cache

import pytest

from rebinding.experiments.anywhere.pairs import Pairs
from rebinding.experiments.anywhere.request import Settings
from rebinding.experiments.anywhere.search import Search
from rebinding.experiments.circuit.discovery import discover
from rebinding.paper.graph import Graph, Node
from rebinding.planted.graph import Wired, wired
from rebinding.study.anywhere import search_pairs
from rebinding.study.circuit import with_labels
from rebinding.study.drawing import draw
from rebinding.surgery import TorchSurgeon, derive
from rebinding.world.designs import design
from rebinding.world.prompts import Encoder
from tests.planted.bench import plant

SHARE = 0.002
"""Of the whole. The weakest planted node is worth 0.005 of it; a decoy 1e-5 at most."""
PROMPTS = 72
"""Two balanced blocks, eight of each pair of slots: with one, the weakest planted link is not surely there."""
SETTINGS = Settings(SHARE, block=36)
PLANTS = ("pointer@llama", "global@gemma2", "lexical@gemma3", "recency@llama", "pointer+at_stop@llama")


@cache
def pairs_for(name: str) -> Pairs:
    return search_pairs(Encoder(plant(name).tokenizer), design("counterbalanced"), range(PROMPTS))


@cache
def found(name: str, settings: Settings = SETTINGS) -> Graph:
    model = plant(name).model
    return Search(TorchSurgeon(model, derive(model)), pairs_for(name), settings).graph()


def by_place(name: str, graph: Graph) -> Wired:
    """What was found, every node at all the places where its token stands."""
    pairs = pairs_for(name)

    def places(node: Node | None) -> set[Node | None]:
        if node is None:
            return {None}
        return {node._replace(token=pairs.places[at]) for at in pairs.at(node.token).tolist() if at >= 0}

    nodes = {one for node in graph.nodes for one in places(node)}
    links = {(s, r, e.component) for e in graph.edges for s in places(e.sender) for r in places(e.receiver)}
    return Wired(frozenset(nodes), frozenset(links))  # type: ignore[arg-type]  # no None among nodes


def kinds(graph: Wired) -> set[tuple[object, ...]]:
    """Links without the number of the statement."""

    def kind(node: Node | None) -> object:
        return node and (node.layer, node.head, node.token.split("[")[0])

    return {(kind(sender), kind(receiver), component) for sender, receiver, component in graph.links}


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_graph_is_found(name: str) -> None:
    """The same nodes, at the same tokens; the same links, component by component; nothing else, of 35 to 44 decoys."""
    true, graph = wired(plant(name), pairs_for(name).clean[0]), by_place(name, found(name))
    assert graph.nodes == true.nodes
    assert kinds(graph) == kinds(true)


def test_nothing_is_lost_by_what_is_left_out() -> None:
    """Every token, attended or not, every row, whatever it moves: the same nodes and links."""
    everything = found("lexical@gemma3", Settings(SHARE, listens=0.0, exhaustive=True, block=36))
    few = found("lexical@gemma3")
    assert everything.nodes == few.nodes
    assert [edge[:3] for edge in everything.edges] == [edge[:3] for edge in few.edges]


def test_the_stages_find_no_d_at_the_full_stop() -> None:
    """Told to look at the swap's labels, they find nobody there; the search finds all four heads at the full stop."""
    subject = plant("pointer+at_stop@llama")
    encoder, surgeon = Encoder(subject.tokenizer), TorchSurgeon(subject.model, derive(subject.model))
    pairs = with_labels(encoder, draw(encoder, design("partner_second"), range(9), ("noise", "independent")))
    assert set(discover(surgeon, pairs).circuit.groups) == {"A", "B", "C"}
    names = ("first label", "last label", "last slot", "first slot")
    planted = {Node(*subject.heads[name], "swap_period") for name in names}
    assert planted == {node for node in found("pointer+at_stop@llama").nodes if node.token.startswith("swap")}
