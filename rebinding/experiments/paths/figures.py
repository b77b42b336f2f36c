"""The figures of path patching: the path diagram, and which heads each stage finds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.figures import GROUP_COLOURS
from rebinding.experiments.circuit.request import PRUNING
from rebinding.experiments.figure import FigureSpec, ReportedModel, heads_by_group, shows
from rebinding.experiments.paths.request import PATHS
from rebinding.experiments.paths.summary import lost_by_senders
from rebinding.experiments.plots import LETTERING, OKABE_ITO, SMALLEST, Interval, interval_of, readable
from rebinding.experiments.search.figures import COMPONENTS
from rebinding.paper.circuit import Head

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
        _arrow(axes, link)
    for group, (x, y) in PLACES.items():
        if group == "logits":
            axes.text(x, y, "logits", ha="center", va="center", fontweight="bold")
            continue
        axes.plot(x, y, "o", ms=24, color=GROUP_COLOURS[group] if group in heads else "0.75")
        axes.text(x, y, group, ha="center", va="center", color="white", fontweight="bold")
        label = f"{readable(roles[group])}\nheads: {heads[group]}" if group in heads else "none"
        axes.annotate(label, (x, y), (0, -17), textcoords="offset points", ha="center", va="top")
    axes.set_xlim(-0.5, 5.4)
    axes.set_ylim(-0.75, 3.3)
    axes.set_axis_off()
    return figure


def _arrow(axes: Axes, link: Link) -> None:
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


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "links",
        "circuit",
        "Path diagram with measured effects",
        "Compare with the paper's circuit diagram, whose arrows have no numbers.",
        "There, E acts on D's values, D on C's queries, C on B's values, B on A's queries.",
        "Groups from the context to the answer; on each arrow the component of the receiver (Q, V, K with V) and the"
        " logits that the answer loses if the sender's output comes from a noise prompt, with 95 % intervals.",
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
