"""The figure of position-free discovery: nodes at their tokens over layers, and edges between them."""

from __future__ import annotations

import re

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.experiments.figure import FigureSpec, ReportedModel
from rebinding.experiments.plots import DPI, LETTERING, OKABE_ITO, SMALLEST, readable
from rebinding.paper.graph import Edge, Graph, Node, of_plain

COMPONENTS = {
    "q": OKABE_ITO["blue"],
    "k": OKABE_ITO["orange"],
    "v": OKABE_ITO["green"],
    "direct": OKABE_ITO["vermillion"],
}
PARTS = ("context", "swap", "question", "readout")
"""The parts of a prompt, in order."""
Place = tuple[float, float]


def draw_found_graph(model: ReportedModel) -> Figure | None:
    """The graph that position-free discovery finds."""
    graph = model.about.get("graph")
    return draw_graph(of_plain(graph), int(model.about["layers"]), "found") if graph else None


def draw_graph(graph: Graph, n_layers: int, name: str) -> Figure:
    """Rows are tokens, columns layers; an arrow is as thick as its effect, and dashed if it works against the
    answer."""
    with mpl.rc_context(LETTERING):
        tokens = sorted({node.token for node in graph.nodes}, key=_order)
        figure = Figure(
            figsize=(max(7.0, 2.5 + 0.3 * n_layers), 1.4 + 0.5 * max(len(tokens), 1)), dpi=DPI, layout="constrained"
        )
        axes = figure.subplots()
        places = _places(graph, tokens)
        strongest = max((abs(edge.effect) for edge in graph.edges), default=1.0)
        for edge in sorted(graph.edges, key=lambda edge: abs(edge.effect)):
            _arrow(axes, edge, places, (float(n_layers), float(len(tokens) - 1)), strongest)
        for node, (x, y) in places.items():
            axes.plot(x, y, "o", ms=13, color="0.25")
            axes.annotate(str(node.head), (x, y), ha="center", va="center", fontsize=SMALLEST, color="w")
        for component, colour in COMPONENTS.items():
            axes.plot([], [], color=colour, label=component if component == "direct" else f"by {component}")
        axes.set_yticks(range(len(tokens)), [readable(token) for token in tokens])
        axes.set_ylim(len(tokens) - 0.4, -0.6)
        axes.set_xlim(-0.7, n_layers + 0.4)
        axes.set_xlabel("layer (the last arrow ends at the logits)")
        axes.legend(loc="upper left", fontsize=SMALLEST)
        axes.set_title(f"{name}: {len(graph.nodes)} nodes, {len(graph.edges)} edges", loc="left")
        return figure


def _order(token: str) -> tuple[int, str, int]:
    """Sort key: parts of the prompt in order, then statements, then the offset of a word from its role."""
    role, *offset = re.split(r"(?=[+-]\d+$)", token.rpartition("@")[2])
    part = next((number for number, part in enumerate(PARTS) if role.startswith(part)), len(PARTS))
    slot = role.partition("[")[2].partition("]")[0]
    return part, slot or role, int(offset[0]) if offset else 0


def _places(graph: Graph, tokens: list[str]) -> dict[Node, Place]:
    """The place of each node; nodes of one layer and token are side by side."""
    places: dict[Node, Place] = {}
    for node in sorted(graph.nodes):
        number = sum((node.layer, node.token) == (other.layer, other.token) for other in places)
        places[node] = (node.layer + 0.22 * number, float(tokens.index(node.token)))
    return places


def _arrow(axes: Axes, edge: Edge, places: dict[Node, Place], logits: Place, strongest: float) -> None:
    end = logits if edge.receiver is None else places[edge.receiver]
    strength = abs(edge.effect) / strongest
    axes.annotate(
        "", end, places[edge.sender],
        arrowprops={
            "arrowstyle": "-|>", "color": COMPONENTS[edge.component], "lw": 0.3 + 2.2 * strength,
            "alpha": 0.25 + 0.75 * strength, "ls": "-" if edge.effect > 0 else "--", "shrinkA": 4, "shrinkB": 4,
            "connectionstyle": "arc3,rad=0.12",
        },
    )  # fmt: skip


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "graph",
        "circuit",
        "What position-free discovery finds",
        "Not in the paper, whose stages look at one token each.",
        "",
        "Heads at their tokens, layers from left to right. Thickness of an arrow: its effect in logits; dashed: against"
        " the answer.",
        (),
        draw_found_graph,
        special=True,
    ),
)
