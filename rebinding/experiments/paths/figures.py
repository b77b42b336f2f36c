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
"""The paper's chain, with both ways in which D may reach C: as we have it and to the letter."""
SHIFTED = {("D", "C", "q"): -0.35}
"""One of two arrows between the same groups bends the other way."""
THICKEST = 20
"""Logits from which on an arrow is not drawn thicker; the same on every model."""
Heads = Collection[tuple[int, int]]
STRONGEST = "Blues"
FAINTEST = 0.1
"""Logits that the darkest colour stands for at least, so that rounding is not shown as if it were something."""


def draw_links(model: ReportedModel) -> Figure | None:
    """What each group of the circuit does to the answer through the next one."""
    heads = heads_by_group(model.about.get("circuit", []))
    roles = {group: role for group, _, _, role in reversed(model.about.get("circuit", []))}
    found = [Link(*link, _strength(model, link, heads)) for link in LINKS]
    if not any(one.strength for one in found):
        return None
    return path_diagram(found, roles, {group: len(mine) for group, mine in heads.items()})


def _strength(model: ReportedModel, link: tuple[str, str, str], heads: Mapping[str, Heads]) -> Interval | None:
    """Of the group alone as sender; None where that was not run. Rows say which heads sent."""
    sender, _, component = link
    stage = f"{sender} to {'logits' if component == 'direct' else component} at "
    run = [one for one in model.of(PATHS).values() if str(one.settings["facets"].get("stage", "")).startswith(stage)]
    mine = sorted(heads.get(sender, ()))
    alone = [one for one in run if sorted({*zip(one.rows["layer"], one.rows["head"], strict=True)}) == mine]
    return strength(max(alone, key=_how_controlled), mine) if mine and alone else None


def _how_controlled(evidence: Evidence) -> tuple[bool, bool]:
    """Of several runs of a link the controlled one is shown: other heads frozen, and noise that shares no slot."""
    facets = evidence.settings["facets"]
    return facets.get("frozen") == "all", facets.get("noise") == "independent"


def draw_overlap(model: ReportedModel) -> Figure | None:
    """Which heads each stage of path patching finds, beside those of the circuit that is judged."""
    judged, ours = heads_by_group(model.about.get("circuit", [])), heads_by_group(model.discovered())
    return overlap_grid(model.stages, judged, ours) if model.stages else None


@dataclass(frozen=True)
class Link:
    """What a group does to the answer through a component of the next one: logits lost under noise."""

    sender: str
    receiver: str
    component: str
    strength: Interval | None


def strength(evidence: Evidence, heads: Sequence[Head]) -> Interval:
    """By how many logits the answer falls if all heads of a group send noise: their mean, times how many they are."""
    return interval_of(lost_by_senders(evidence, heads, "logit") * len(heads))


@mpl.rc_context(LETTERING)
def path_diagram(links: Sequence[Link], roles: Mapping[str, str], heads: Mapping[str, int]) -> Figure:
    """Groups as discs, arrows as thick as their strength; grey and dotted what was not measured."""
    figure = Figure(figsize=(6.9, 4.2), layout="constrained")
    axes = figure.subplots()
    for one in links:
        _arrow(axes, one)
    for group, (x, y) in PLACES.items():
        if group == "logits":
            axes.text(x, y, "logits", ha="center", va="center", fontweight="bold")
            continue
        axes.plot(x, y, "o", ms=24, color=GROUP_COLOURS[group] if group in heads else "0.75")
        axes.text(x, y, group, ha="center", va="center", color="white", fontweight="bold")
        said = f"{readable(roles[group])}\nheads: {heads[group]}" if group in heads else "none"
        axes.annotate(said, (x, y), (0, -17), textcoords="offset points", ha="center", va="top")
    axes.set_xlim(-0.5, 5.4)
    axes.set_ylim(-0.75, 3.3)
    axes.set_axis_off()
    return figure


def _arrow(axes: Axes, one: Link) -> None:
    (x, y), (to_x, to_y) = PLACES[one.sender], PLACES[one.receiver]
    bend = SHIFTED.get((one.sender, one.receiver, one.component), 0.35)
    width = 0.8 if one.strength is None else 0.8 + 4 * min(abs(one.strength.mean) / THICKEST, 1)
    axes.annotate(
        "", (to_x, to_y), (x, y),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.3,head_length=0.6", "lw": width, "shrinkA": 13, "shrinkB": 14,
            "color": "0.6" if one.strength is None else COMPONENTS[one.component[-1] if one.component == "kv" else
                                                                  one.component],
            "ls": ":" if one.strength is None else "-", "connectionstyle": f"arc3,rad={-bend}",
        },
    )  # fmt: skip
    told = "not measured" if one.strength is None else _written(one.strength)
    name = one.component if one.component == "direct" else one.component.upper()
    beside = (-10, 16) if bend > 0 else (60, -32)
    axes.annotate(
        f"{name}: {told}", ((x + to_x) / 2, (y + to_y) / 2), beside, textcoords="offset points",
        ha="right" if bend > 0 else "left", va="center",
    )  # fmt: skip


def _written(found: Interval) -> str:
    mean, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in found)  # adding zero: no -0.00
    return f"{mean} [{low}, {high}]"


@mpl.rc_context(LETTERING)
def overlap_grid(paths: Mapping[str, Evidence], judged: Mapping[str, Heads], found: Mapping[str, Heads]) -> Figure:
    """One panel a group (keys of `paths`): layers x heads, darker where the head's noise costs more of the answer."""
    tables = {group: fall(evidence) for group, evidence in paths.items()}
    columns = min(3, len(tables))
    lines = -(-len(tables) // columns)
    layers, heads = next(iter(tables.values())).shape
    size = (6.8, lines * (0.9 + 1.4 * min(1.6, 0.4 + heads / 20)) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in list(every.flat)[len(tables) :]:
        axes.set_axis_off()
    for axes, (group, table) in zip(every.flat, tables.items(), strict=False):
        top = max(float(table.max()), FAINTEST)
        axes.imshow(table.T, aspect="auto", origin="lower", cmap=STRONGEST, vmin=0, vmax=top, interpolation="nearest")
        for chosen, mark in ((judged, {"marker": "s", "mfc": "none"}), (found, {"marker": "x"})):
            here = np.array(sorted(chosen.get(group, ())), dtype=float).reshape(-1, 2)
            axes.plot(here[:, 0], here[:, 1], linestyle="", color=OKABE_ITO["vermillion"], ms=6, **mark)
        both = len(set(judged.get(group, ())) & set(found.get(group, ())))
        counted = f"{len(judged.get(group, ()))} judged,\n{len(found.get(group, ()))} found, {both} both"
        axes.set_title(f"{group}: {counted},\ndarkest: {top:.2g} logits", fontsize=SMALLEST, loc="left")
        axes.set_xlim(-0.6, layers - 0.4)
    figure.supxlabel("layer")
    figure.supylabel("head")
    return figure


def fall(evidence: Evidence) -> np.ndarray:
    """By how many logits the answer's lead over the other objects falls, mean over prompts: (layer, head)."""
    rows = evidence.rows
    table = (rows["lead_orig"] - rows["lead_patch"]).groupby([rows["layer"], rows["head"]]).mean().unstack()
    values: np.ndarray = table.to_numpy(dtype=np.float64)
    return values.clip(min=0)


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "links",
        "circuit",
        "The path diagram, with what was measured",
        "Beside the paper's circuit diagram, whose arrows have no numbers.",
        "There, E by V to D, D by Q to C, C by V to B, B by Q to A.",
        "Groups from the context to the answer; on each arrow the component of the receiver (Q, V, K with V) and the"
        " logits that the answer loses if the sender is as in a noise prompt, with 95 % intervals.",
        (shows(PATHS),),
        draw_links,
    ),
    FigureSpec(
        "overlap",
        "circuit",
        "Which heads are found again",
        "Beside the paper's table of heads by group.",
        "It prints the heads, and no scores.",
        "Darker: the head's noise costs more of the answer. Squares: the circuit that is judged; crosses: found here.",
        (shows(PATHS), shows(PRUNING)),
        draw_overlap,
    ),
)
