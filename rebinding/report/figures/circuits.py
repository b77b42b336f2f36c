"""The figures of circuits: of position-free discovery, of heads over layers, and of path patching."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.ablation import ABLATION
from rebinding.experiments.circuit import summary
from rebinding.experiments.circuit.request import PRUNING
from rebinding.experiments.paths.request import PATHS
from rebinding.experiments.paths.summary import lost_by_senders
from rebinding.experiments.search.graph import Edge, Graph, Node, of_plain
from rebinding.paper.circuit import Circuit, CircuitHead, Head, head_name, head_text
from rebinding.report.figures.figure import (
    DPI,
    LETTERING,
    OKABE_ITO,
    SMALLEST,
    FigureSpec,
    Interval,
    heads_by_group,
    interval_of,
    readable,
    shows,
    text_colour,
    tooltip,
)
from rebinding.report.folder import ReportedModel

COMPONENTS = {
    "q": OKABE_ITO["blue"],
    "k": OKABE_ITO["orange"],
    "v": OKABE_ITO["green"],
    "direct": OKABE_ITO["vermillion"],
}
PARTS = ("context", "swap", "question", "readout")
"""The parts of a prompt, in order."""
Place = tuple[float, float]
HEADS_TABLE = "#table-heads"
"""The address on the page of the table of heads by group."""


def draw_found_graph(model: ReportedModel) -> Figure | None:
    """The graph that position-free discovery finds."""
    graph = model.about.get("graph")
    return draw_graph(of_plain(graph), int(model.about["layers"]), "found") if graph else None


def draw_graph(graph: Graph, n_layers: int, name: str) -> Figure:
    """A graph on a figure of its own."""
    with mpl.rc_context(LETTERING):
        figure = Figure(figsize=size_of_graph(graph, n_layers), dpi=DPI, layout="constrained")
        draw_graph_on(figure.subplots(), graph, n_layers, name)
        return figure


def size_of_graph(graph: Graph, n_layers: int) -> tuple[float, float]:
    """Width and height in inches."""
    n_tokens = len({node.token for node in graph.nodes})
    return max(7.0, 2.5 + 0.3 * n_layers), 1.4 + 0.5 * max(n_tokens, 1)


def draw_graph_on(axes: Axes, graph: Graph, n_layers: int, name: str) -> None:
    """Rows are tokens, columns layers; an arrow is as thick as its effect, and dashed if it works against the
    answer."""
    with mpl.rc_context(LETTERING):
        tokens = sorted({node.token for node in graph.nodes}, key=_order)
        places = _places(graph, tokens)
        strongest = max((abs(edge.effect) for edge in graph.edges), default=1.0)
        for edge in sorted(graph.edges, key=lambda edge: abs(edge.effect)):
            _draw_edge(axes, edge, places, (float(n_layers), float(len(tokens) - 1)), strongest)
        for node, (x, y) in places.items():
            tip = tooltip(f"head {head_name(node.layer, node.head)} at {readable(node.token)}")
            axes.plot(x, y, "o", ms=13, color="0.25", gid=tip)
            axes.annotate(head_text(node.head), (x, y), ha="center", va="center", fontsize=SMALLEST, color="w")
        for component, colour in COMPONENTS.items():
            axes.plot([], [], color=colour, label=component if component == "direct" else f"by {component}")
        axes.set_yticks(range(len(tokens)), [readable(token) for token in tokens])
        axes.set_ylim(len(tokens) - 0.4, -0.6)
        axes.set_xlim(-0.7, n_layers + 0.4)
        axes.set_xlabel("layer (the last arrow ends at the logits)")
        axes.legend(loc="upper left", fontsize=SMALLEST)
        axes.set_title(f"{name}: {len(graph.nodes)} nodes, {len(graph.edges)} edges", loc="left")


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


def _draw_edge(axes: Axes, edge: Edge, places: dict[Node, Place], logits: Place, strongest: float) -> None:
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


SEARCH_FIGURES: tuple[FigureSpec, ...] = (
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


GROUP_COLOURS = dict(
    zip("ABCDE", (OKABE_ITO[name] for name in ("vermillion", "blue", "green", "orange", "purple")), strict=True)
)
ROWS = (
    "context_partner",
    "context_asked",
    "swap_first",
    "swap_partner",
    "swap_second",
    "swap_asked",
    "swap_period",
    "question_box",
    "readout",
)
"""Roles from the beginning of a prompt to its end, so that information flows downwards and to the right."""


def draw_judged_circuit(model: ReportedModel) -> Figure | None:
    """The circuit under test."""
    heads = tuple(CircuitHead(*head) for head in model.about.get("circuit", []))
    return draw_circuit(Circuit(heads), int(model.about["layers"]), "the circuit under test") if heads else None


def draw_pruned_circuit(model: ReportedModel) -> Figure | None:
    """The discovered circuit after pruning in the published order."""
    pruning = model.find_largest_evidence(PRUNING)
    if pruning is None or "layers" not in model.about:
        return None
    circuit = summary.circuit_after_walk(pruning)
    return draw_circuit(circuit, int(model.about["layers"]), "discovered and pruned") if circuit.heads else None


def draw_circuit(circuit: Circuit, n_layers: int, name: str) -> Figure:
    """Rows are token positions, columns layers; a dot is a head, labelled with its number."""
    with mpl.rc_context(LETTERING):
        roles = [role for role in ROWS if any(head.role == role for head in circuit.heads)]
        roles = sorted({head.role for head in circuit.heads} - set(roles)) + roles
        stacks = _stacks(circuit)
        figure = Figure(
            figsize=(max(6.0, 1.5 + 0.28 * n_layers), 1.2 + 0.95 * max(len(roles), 1)), dpi=DPI, layout="constrained"
        )
        axes = figure.subplots()
        for row, role in enumerate(roles):
            axes.axhline(row, color="0.85", lw=1, zorder=0)
            for head in (head for head in circuit.heads if head.role == role):
                height = stacks[head] * 0.22
                place, fill = (head.layer, row - height), GROUP_COLOURS.get(head.group, "0.4")
                tip = tooltip(f"head {head_name(head.layer, head.head)}, group {head.group}, at {readable(head.role)}")
                axes.plot(*place, "o", ms=13, color=fill, gid=tip, url=HEADS_TABLE)
                colour = text_colour(fill)
                axes.annotate(head_text(head.head), place, ha="center", va="center", fontsize=SMALLEST, color=colour)
        axes.set_yticks(range(len(roles)), [_row_label(circuit, role) for role in roles])
        axes.set_ylim(len(roles) - 0.4, -0.9)
        axes.set_xlim(-0.7, n_layers - 0.3)
        axes.set_xlabel("layer")
        axes.set_title(f"{name}: {circuit.pairs} head-position pairs, {circuit.unique} heads", loc="left")
        return figure


def _stacks(circuit: Circuit) -> dict[CircuitHead, int]:
    """The height of each head above its row: heads of one role and layer are stacked."""
    counts: dict[tuple[str, int], int] = {}
    heights = {}
    for head in sorted(circuit.heads):
        place = (head.role, head.layer)
        heights[head] = counts.get(place, 0)
        counts[place] = heights[head] + 1
    return heights


def _row_label(circuit: Circuit, role: str) -> str:
    groups = "".join(sorted({head.group for head in circuit.heads if head.role == role and len(head.group) == 1}))
    return f"{readable(role)}  {groups}".rstrip()


CIRCUIT_FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "circuit",
        "circuit",
        "Circuit under test",
        "Compare with the paper's circuit diagram.",
        "There, groups E to A stand at their tokens, and information goes down and to the right.",
        "Heads of the circuit: a row for each token, layers from left to right.",
        (shows(ABLATION, comparison="groups"), shows(PATHS)),
        draw_judged_circuit,
    ),
    FigureSpec(
        "pruned",
        "circuit",
        "Circuit discovered in this run, after pruning",
        "Compare with the paper's table of heads after pruning.",
        "",
        "Heads that path patching finds and pruning keeps: a row for each token, layers from left to right.",
        (shows(PRUNING), shows(ABLATION, comparison="heads")),
        draw_pruned_circuit,
    ),
)


PLACES = {"E": (0.0, 0.0), "D": (1.0, 0.6), "C": (2.0, 1.2), "B": (3.0, 1.8), "A": (4.0, 2.4), "logits": (5.0, 3.0)}
"""Information goes to the right, from the context to the answer, and up through the layers."""
LINKS = (
    ("E", "D", "v"),
    ("D", "C", "kv"),
    ("D", "C", "q"),
    ("C", "B", "v"),
    ("B", "A", "q"),
    ("A", "logits", "direct"),
)
"""The paper's chain, with both links from D to C: by keys and values as we read it, by the query as printed."""
SHIFTED = {("D", "C", "q"): -0.35}
"""Of two arrows between the same groups one bends the other way."""
THICKEST = 20
"""Logits of the thickest arrow, the same for every model."""
Heads = Collection[tuple[int, int]]
STRONGEST = "Blues"
FAINTEST = 0.1
"""The least number of logits for the darkest colour, so that rounding does not look like an effect."""


def draw_links(model: ReportedModel) -> Figure | None:
    """What each group of the circuit does to the answer through the next one."""
    heads = heads_by_group(model.about.get("circuit", []))
    roles = {group: role for group, _, _, role in reversed(model.about.get("circuit", []))}
    links = [Link(*names, _strength(model, names, heads)) for names in LINKS]
    if not any(link.strength for link in links):
        return None
    return path_diagram(links, roles, {group: len(members) for group, members in heads.items()})


def _strength(model: ReportedModel, link: tuple[str, str, str], heads: Mapping[str, Heads]) -> Interval | None:
    """The strength of the group among the senders of its rows; None if these were not run."""
    sender, _, component = link
    stage = f"{sender} to {'logits' if component == 'direct' else component} at "
    runs = [
        run
        for run in model.find_evidence(PATHS).values()
        if str(run.settings["facets"].get("stage", "")).startswith(stage)
    ]
    group = sorted(heads.get(sender, ()))
    of_rows = [run for run in runs if run.settings["facets"].get("senders") != "all"]
    of_group = [run for run in of_rows if {*group} <= {*zip(run.rows["layer"], run.rows["head"], strict=True)}]
    return strength(max(of_group, key=_how_controlled), group) if group and of_group else None


def _how_controlled(evidence: Evidence) -> tuple[bool, bool]:
    """Sort key: of several runs of a link show the controlled one, with other heads frozen and independent noise."""
    facets = evidence.settings["facets"]
    return facets.get("frozen") == "all", facets.get("noise") == "independent"


def draw_overlap(model: ReportedModel) -> Figure | None:
    """Which heads each stage of path patching finds, next to the heads of the circuit under test."""
    reference, discovered = heads_by_group(model.about.get("circuit", [])), heads_by_group(model.discovered_circuit())
    return overlap_grid(model.stages, reference, discovered) if model.stages else None


@dataclass(frozen=True)
class Link:
    """What a group does to the answer through a component of the next one: logits lost under noise."""

    sender: str
    receiver: str
    component: str
    strength: Interval | None


def strength(evidence: Evidence, heads: Sequence[Head]) -> Interval:
    """Logits that the answer loses if all heads of a group send noise: the mean over heads times their number."""
    return interval_of(lost_by_senders(evidence, heads, "logit") * len(heads))


@mpl.rc_context(LETTERING)
def path_diagram(links: Sequence[Link], roles: Mapping[str, str], heads: Mapping[str, int]) -> Figure:
    """Groups as discs, links as arrows as thick as their strength; unmeasured links are grey and dotted."""
    figure = Figure(figsize=(6.9, 4.2), layout="constrained")
    axes = figure.subplots()
    for link in links:
        _draw_link(axes, link)
    for group, (x, y) in PLACES.items():
        if group == "logits":
            axes.text(x, y, "logits", ha="center", va="center", fontweight="bold")
            continue
        fill = GROUP_COLOURS[group] if group in heads else "0.75"
        axes.plot(x, y, "o", ms=24, color=fill)
        axes.text(x, y, group, ha="center", va="center", color=text_colour(fill), fontweight="bold")
        label = f"{readable(roles[group])}\nheads: {heads[group]}" if group in heads else "none"
        axes.annotate(label, (x, y), (0, -17), textcoords="offset points", ha="center", va="top")
    axes.set_xlim(-0.5, 5.4)
    axes.set_ylim(-0.75, 3.3)
    axes.set_axis_off()
    return figure


def _draw_link(axes: Axes, link: Link) -> None:
    (x, y), (to_x, to_y) = PLACES[link.sender], PLACES[link.receiver]
    bend = SHIFTED.get((link.sender, link.receiver, link.component), 0.35)
    width = 0.8 if link.strength is None else 0.8 + 4 * min(abs(link.strength.mean) / THICKEST, 1)
    axes.annotate(
        "", (to_x, to_y), (x, y),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.3,head_length=0.6", "lw": width, "shrinkA": 13, "shrinkB": 14,
            "color": "0.6" if link.strength is None else COMPONENTS[link.component[-1] if link.component == "kv" else
                                                                  link.component],
            "ls": ":" if link.strength is None else "-", "connectionstyle": f"arc3,rad={-bend}",
        },
    )  # fmt: skip
    value = "not measured" if link.strength is None else _written(link.strength)
    name = link.component if link.component == "direct" else link.component.upper()
    offset = (-10, 16) if bend > 0 else (60, -32)
    axes.annotate(
        f"{name}: {value}", ((x + to_x) / 2, (y + to_y) / 2), offset, textcoords="offset points",
        ha="right" if bend > 0 else "left", va="center",
    )  # fmt: skip


def _written(interval: Interval) -> str:
    mean, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in interval)  # adding zero: no -0.00
    return f"{mean} [{low}, {high}]"


@mpl.rc_context(LETTERING)
def overlap_grid(
    paths: Mapping[str, Evidence], reference: Mapping[str, Heads], discovered: Mapping[str, Heads]
) -> Figure:
    """One panel per group (keys of `paths`): layers x heads, darker where a head's noise costs more of the answer."""
    tables = {group: fall(evidence) for group, evidence in paths.items()}
    columns = min(3, len(tables))
    lines = -(-len(tables) // columns)
    layers, heads = next(iter(tables.values())).shape
    size = (6.8, lines * (0.9 + 1.4 * min(1.6, 0.4 + heads / 20)) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in list(panels.flat)[len(tables) :]:
        axes.set_axis_off()
    for axes, (group, table) in zip(panels.flat, tables.items(), strict=False):
        top = max(float(table.max()), FAINTEST)
        axes.imshow(table.T, aspect="auto", origin="lower", cmap=STRONGEST, vmin=0, vmax=top, interpolation="nearest")
        for group_heads, mark in ((reference, {"marker": "s", "mfc": "none"}), (discovered, {"marker": "x"})):
            points = np.array(sorted(group_heads.get(group, ())), dtype=float).reshape(-1, 2)
            axes.plot(points[:, 0], points[:, 1], linestyle="", color=OKABE_ITO["vermillion"], ms=6, **mark)
        both = len(set(reference.get(group, ())) & set(discovered.get(group, ())))
        counted = f"{len(reference.get(group, ()))} under test,\n{len(discovered.get(group, ()))} found, {both} both"
        axes.set_title(f"{group}: {counted},\ndarkest: {top:.2g} logits", fontsize=SMALLEST, loc="left")
        axes.set_xlim(-0.6, layers - 0.4)
    figure.supxlabel("layer")
    figure.supylabel("head")
    return figure


def fall(evidence: Evidence) -> np.ndarray:
    """The drop of the answer's lead over the other objects in logits, mean over prompts: (layer, head)."""
    rows = evidence.rows
    table = (rows["lead_orig"] - rows["lead_patch"]).groupby([rows["layer"], rows["head"]]).mean().unstack()
    values: np.ndarray = table.to_numpy(dtype=np.float64)
    return values.clip(min=0)


PATH_FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "links",
        "circuit",
        "Path diagram with measured effects",
        "Compare with the paper's circuit diagram, whose arrows have no numbers.",
        "There, E acts on D's values, D on C's queries, C on B's values, B on A's queries.",
        "Groups from the context to the answer; on each arrow the component of the receiver (Q, V, K with V) and the"
        " logits that the answer loses if the sender's output comes from a noise prompt, with 90 % intervals.",
        (shows(PATHS),),
        draw_links,
    ),
    FigureSpec(
        "overlap",
        "circuit",
        "Path patching: effect of every head",
        "Compare with the paper's table of heads by group.",
        "It prints the heads, and no scores.",
        "Darker: noise in the head's output costs more of the answer. Squares: circuit under test; crosses: heads found"
        " in this run.",
        (shows(PATHS), shows(PRUNING)),
        draw_overlap,
    ),
)
