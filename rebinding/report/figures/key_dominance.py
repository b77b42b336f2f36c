"""How a fixed preference for slots imitates key dominance, on planted models: the figure of docs/key-dominance.md."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.binding.measures import per_example
from rebinding.report.figures.binding import dot
from rebinding.report.figures.style import LETTERING, OKABE_ITO
from rebinding.report.intervals import over_prompts

COLOURS = {"published": OKABE_ITO["orange"], "counterbalanced": OKABE_ITO["blue"]}
CONDITIONS = {"q": "Q", "k_both": "K", "qk": "Q+K"}


@mpl.rc_context(LETTERING)
def key_dominance_figure(evidence: Mapping[tuple[str, str], Evidence]) -> Figure:
    """A row for every mechanism (keys: mechanism, design): both designs beside each other, and every pair of slots."""
    mechanisms = list(dict.fromkeys(mechanism for mechanism, _ in evidence))
    figure = Figure(figsize=(8, 2.6 * len(mechanisms)), layout="constrained")
    rows = figure.subplots(len(mechanisms), 2, squeeze=False, width_ratios=(3, 4))
    for (left, right), mechanism in zip(rows, mechanisms, strict=True):
        for place, (design, colour) in enumerate(COLOURS.items()):
            examples = per_example(evidence[mechanism, design])
            for line, condition in enumerate(CONDITIONS):
                one = examples[examples["condition"] == condition]
                dot(left, one, "dR", line + 0.2 * (place - 0.5), colour, label=None if line else design)
        left.set_yticks(range(len(CONDITIONS)), CONDITIONS.values())
        left.set_ylim(2.5, -0.5)
        left.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        left.set_title(f"{mechanism}: dR toward j")
        left.legend(loc="best")
        _by_pair(right, per_example(evidence[mechanism, "counterbalanced"]))
        right.set_title(f"{mechanism}: dR of K, by ordered pair")
    return figure


def _by_pair(axes: Axes, examples: pd.DataFrame) -> None:
    pairs = sorted({(int(i), int(j)) for i, j in zip(examples["i"], examples["j"], strict=True)})
    keys = examples[examples["condition"] == "k_both"]
    for place, (i, j) in enumerate(pairs):
        one = keys[(keys["i"] == i) & (keys["j"] == j)]
        found = over_prompts(one, "dR")
        colour = COLOURS["published" if (i, j) == (1, 0) else "counterbalanced"]
        axes.errorbar(place, found.mean, [[found.mean - found.low], [found.high - found.mean]], fmt="o", color=colour)
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(pairs)), [f"{i}→{j}" for i, j in pairs])
