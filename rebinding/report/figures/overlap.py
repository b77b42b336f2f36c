"""The head-overlap grid of section 4.1: for every group the score of each head as a sender, the heads of the circuit
that is judged (published, or declared by a plant), and those that discovery selected."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.report.figures.style import LETTERING, OKABE_ITO, SMALLEST

Heads = Collection[tuple[int, int]]
STRONGEST = "Blues"
FAINTEST = 0.1
"""Logits that the darkest colour stands for at least, so that rounding is not shown as if it were something."""


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
