"""The graph of a search, drawn: rows are tokens, in the order in which a prompt has them."""

from __future__ import annotations

from rebinding.experiments.search.graph import Edge, Graph, Node
from rebinding.report.figures.circuits import draw_graph

IN_ORDER = (
    ".@context_object[0]+1",
    "context_asked",
    "contains@context_asked+1",
    "swap_first",
    "newline@readout-2",
    "readout",
)


def test_a_word_stands_where_it_stands_beside_its_role() -> None:
    """And the last row is the readout, where arrows to the logits end."""
    nodes = tuple(Node(layer, 0, token) for layer, token in enumerate(reversed(IN_ORDER)))
    figure = draw_graph(Graph(nodes, (Edge(nodes[0], None, "direct", 1.0, 0.5, 1.5),)), 8, "made up")
    rows = [row.get_text().replace(" ", "_") for row in figure.axes[0].get_yticklabels()]
    assert [row.partition("@")[0] for row in rows] == [token.partition("@")[0] for token in IN_ORDER]
