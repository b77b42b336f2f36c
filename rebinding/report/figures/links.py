"""The path diagram: the groups of a circuit at their tokens, and how strongly each acts on the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import lost
from rebinding.paper.circuit import Head
from rebinding.report.figures.circuit import GROUP_COLOURS
from rebinding.report.figures.graph import COMPONENTS
from rebinding.report.figures.style import LETTERING, readable
from rebinding.report.intervals import LEVEL, Interval
from rebinding.verdicts import estimate

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


@dataclass(frozen=True)
class Link:
    """What a group does to the answer through a component of the next one: logits lost under noise."""

    sender: str
    receiver: str
    component: str
    strength: Interval | None


def strength(evidence: Evidence, heads: Sequence[Head]) -> Interval:
    """By how many logits the answer falls if all heads of a group send noise: their mean, times how many they are."""
    found = estimate(lost(evidence, heads, "logit") * len(heads), unit="prompts")
    low, high = found.bounds(LEVEL)
    return Interval(float(found.mean), float(low), float(high))


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
