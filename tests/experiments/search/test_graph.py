"""A graph goes into files and comes back; its circuit is one that the rest of the suite takes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from rebinding.experiments.search import graph
from rebinding.experiments.search.graph import Edge, Graph, Node
from rebinding.paper import circuit
from rebinding.paper.circuit import CircuitError, Owner
from rebinding.report.figures.circuits import draw_graph

OWNER = Owner("planted:pointer", "a" * 64, 12, 8)
COPY, MATCH, PAIR = Node(11, 2, "readout"), Node(9, 7, "readout"), Node(8, 1, "question_box")
STOP, LABEL, WORD = Node(5, 5, "swap_period"), Node(2, 0, "context_asked"), Node(2, 0, "contains@context_asked+1")
GRAPH = Graph(
    (COPY, MATCH, PAIR, STOP, LABEL, WORD),
    (
        Edge(COPY, None, "direct", 4.5, 4.0, 5.0),
        Edge(MATCH, COPY, "q", 3.0, 2.5, 3.5),
        Edge(PAIR, MATCH, "v", 1.0, 0.5, 1.5),
        Edge(STOP, PAIR, "k", -0.25, -0.5, -0.1),
    ),
    {"share": 0.02},
)


def test_graph_survives_json(tmp_path: Path) -> None:
    """Nodes, edges and settings; another model's graph, and what is none, are refused."""
    path = tmp_path / "graph.json"
    graph.save(GRAPH, OWNER, path)
    second = graph.load(path, OWNER)
    assert second == GRAPH
    assert second.settings == GRAPH.settings
    with pytest.raises(CircuitError, match="belongs to planted:pointer"):
        graph.load(path, Owner("other", "b" * 64, 12, 8))
    path.write_text("{}")
    with pytest.raises(CircuitError, match="not a graph"):
        graph.load(path, OWNER)


def test_graphml(tmp_path: Path) -> None:
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


def test_graph_gives_a_circuit(tmp_path: Path) -> None:
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


def test_figure_shows_every_edge() -> None:
    """A row a token, from the context to the readout; an arrow an edge, dashed where it works against."""
    axes = draw_graph(GRAPH, 12, "it").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0].startswith("context")
    assert labels[-3:] == ["swap period", "question box", "readout"]
    arrows = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    assert sorted(arrow.get_linestyle() for arrow in arrows) == ["-", "-", "-", "--"]
