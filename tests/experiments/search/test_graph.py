"""A graph goes into files and comes back, gives a circuit, and is compared with another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rebinding.experiments.search import graph
from rebinding.experiments.search.graph import Edge, Graph, Node, compare
from rebinding.paper import circuit
from rebinding.paper.circuit import CircuitError, Owner
from rebinding.report.figures.circuits import draw_graph

OWNER = Owner("planted:pointer", "a" * 64, 12, 8)
COPY, MATCH, PAIR = Node(11, 2, "readout"), Node(9, 7, "readout"), Node(8, 1, "question_box")
STOP, LABEL, WORD = Node(5, 5, "swap_period"), Node(2, 0, "context_asked"), Node(2, 0, "contains@context_asked+1")


def edge(sender: Node, receiver: Node | None, component: str, effect: float) -> Edge:
    return Edge(sender, receiver, component, effect, effect - 0.1, effect + 0.1)


GRAPH = Graph(
    (COPY, MATCH, PAIR, STOP, LABEL, WORD),
    (
        edge(COPY, None, "direct", 4.5),
        edge(MATCH, COPY, "q", 3.0),
        edge(PAIR, MATCH, "v", 1.0),
        edge(STOP, PAIR, "k", -0.25),
    ),
    {"share": 0.02},
)
FIRST_GRAPH = Graph(
    (COPY, MATCH, PAIR),
    (
        edge(COPY, None, "direct", 4.0),
        edge(MATCH, COPY, "q", 3.0),
        edge(PAIR, MATCH, "v", -2.0),
        edge(PAIR, MATCH, "k", 1.0),
    ),
    {"design": "counterbalanced", "skip_prompts": 0, "prompts": 36},
)
SECOND_GRAPH = Graph(
    (COPY, MATCH, STOP, PAIR),
    (
        edge(COPY, None, "direct", 4.2),
        edge(MATCH, COPY, "q", 2.9),
        edge(PAIR, MATCH, "v", -2.0),
        edge(STOP, COPY, "v", 0.9),
    ),
    {"design": "counterbalanced", "skip_prompts": 36, "prompts": 36},
)


def test_a_saved_graph_is_loaded_by_its_own_model_only(tmp_path: Path) -> None:
    """Nodes, edges and settings; another model's graph, and what is none, are refused."""
    path = tmp_path / "graph.json"
    graph.save(GRAPH, OWNER, path)
    loaded = graph.load(path, OWNER)
    assert (loaded, loaded.settings) == (GRAPH, GRAPH.settings)
    with pytest.raises(CircuitError, match="belongs to planted:pointer"):
        graph.load(path, Owner("other", "b" * 64, 12, 8))
    path.write_text("{}")
    with pytest.raises(CircuitError, match="not a graph"):
        graph.load(path, OWNER)


def test_a_graph_as_text_has_each_node_with_what_it_receives_strongest_first() -> None:
    both = replace(FIRST_GRAPH, edges=(*FIRST_GRAPH.edges, edge(STOP, MATCH, "q", -5.0)))
    assert [line[29:] for line in both.lines()[:-1]] == [
        "11.2 at readout direct +4.00",
        "9.7 at readout q +3.00",
        "5.5 at swap_period q -5.00; 8.1 at question_box v -2.00; 8.1 at question_box k +1.00",
        "none that was found",
    ]
    assert both.lines()[-1].startswith("3 nodes, 5 edges")


def test_graphml_has_every_node_and_edge(tmp_path: Path) -> None:
    """Every node and edge, with numbers, as any reader of XML sees them."""
    path = tmp_path / "graph.graphml"
    odd = Node(0, 0, "<bos>@context_box[0]-3")
    graph.save(Graph((*GRAPH.nodes, odd), GRAPH.edges), OWNER, path)
    space = "{http://graphml.graphdrawing.org/xmlns}"
    root = ElementTree.parse(path).getroot()
    nodes = {element.attrib["id"]: [part.text for part in element] for element in root.iter(f"{space}node")}
    assert nodes.pop("logits") == []
    assert nodes == {str(node): [str(node.layer), str(node.head), node.token] for node in (*GRAPH.nodes, odd)}
    edges = [
        (element.attrib["source"], element.attrib["target"], element[0].text, element[1].text)
        for element in root.iter(f"{space}edge")
    ]
    assert edges == [(str(e.sender), str(e.receiver or "logits"), e.component, str(e.effect)) for e in GRAPH.edges]


def test_the_circuit_of_a_graph_groups_nodes_by_place(tmp_path: Path) -> None:
    """Groups by what a node does and where, a letter at as many tokens as there are; and the file keeps them."""
    circuit_of_graph = GRAPH.circuit()
    assert {place: [(head.layer, head.head) for head in heads] for place, heads in circuit_of_graph.places.items()} == {
        ("A", "readout"): [COPY[:2]],
        ("B", "readout"): [MATCH[:2]],
        ("C", "question_box"): [PAIR[:2]],
        ("D", "swap_period"): [STOP[:2]],
        ("E", "context_asked"): [LABEL[:2]],
        ("E", "contains@context_asked+1"): [WORD[:2]],
    }
    assert circuit_of_graph.group("E") == (LABEL[:2],)
    circuit.save(circuit_of_graph, OWNER, tmp_path / "circuit.json")
    assert circuit.load(tmp_path / "circuit.json", OWNER) == circuit_of_graph


def test_the_figure_shows_every_edge() -> None:
    """A row a token, from the context to the readout; an arrow an edge, dashed where it works against."""
    axes = draw_graph(GRAPH, 12, "it").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0].startswith("context")
    assert labels[-3:] == ["swap period", "question box", "readout"]
    arrows = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    assert sorted(arrow.get_linestyle() for arrow in arrows) == ["-", "-", "-", "--"]


def test_graphs_are_compared_by_edges_and_weights() -> None:
    """By hand: 9 of 10 logits here are in arrows of both, 9.1 of 10 there; another component is another arrow; of the
    three differences 0.2, 0.1 and 0 the one in the middle is 0.1. Correlation: 21.0 / sqrt(20.667 x 21.38)."""
    assert list(compare(FIRST_GRAPH, SECOND_GRAPH, "other.json")) == [
        "compared with other.json: found on 36 prompts, 0 of them among the 36 of this run",
        "  nodes: 3 in both, of 3 here and 4 there",
        "    there alone: 5.5 at swap_period",
        "  edges: 3 in both, of 4 here and 4 there",
        "    0.90 of all effects here is on shared edges; the rest begins with 8.1 at question_box to 9.7 at readout k"
        " +1.00",
        "    0.91 of all effects there is on shared edges; the rest begins with 5.5 at swap_period to 11.2 at readout v"
        " +0.90",
        "    their effects, here against there: correlation 0.999, half within 0.10",
    ]


def test_shared_prompts_are_counted() -> None:
    """The same ids under another design are other prompts."""
    for settings, line in (
        ({"design": "counterbalanced", "skip_prompts": 24, "prompts": 24}, "12 of them among the 36 of this run"),
        ({"design": "published", "skip_prompts": 0, "prompts": 36}, "0 of them among"),
        ({}, "found on prompts that its file does not name"),
    ):
        assert line in next(compare(FIRST_GRAPH, replace(SECOND_GRAPH, settings=settings), "it"))


def test_a_graph_is_compared_with_itself_and_with_an_empty_one() -> None:
    lines = "\n".join(compare(FIRST_GRAPH, FIRST_GRAPH, "it"))
    assert "alone" not in lines
    assert "the rest" not in lines
    assert "1.00 of all effects there" in lines
    empty = list(compare(FIRST_GRAPH, Graph((), (), {}), "it"))
    assert "    0.00 of all effects here is on shared edges; the rest begins" in "\n".join(empty)
    assert "nan" not in "\n".join(empty)
