"""Figure of section 4.2: what patching each head group does to the counterfactual's object and to the pointed one."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.roles.summary import group_effects
from rebinding.report.figures.style import LETTERING, OKABE_ITO, readable
from rebinding.report.intervals import over_prompts

WIDTH = 0.38
PAPERS = OKABE_ITO["vermillion"]
MEASURED = {"new_object": "content", "pointed_object": "pointer"}
"""What the paper's numbers are called, by the word that is measured."""
LOOKS = {"new_object": {"hatch": "///", "facecolor": "white"}, "pointed_object": {"facecolor": OKABE_ITO["blue"]}}


@mpl.rc_context(LETTERING)
def role_bars(
    control: Evidence, pointer: Evidence, *, printed: Mapping[tuple[str, str], float] | None = None
) -> Figure:
    """Grouped bars with 95 % intervals: the control's `new_object` hatched, the pointer's `pointed_object` filled.

    `printed` are the paper's numbers by group and by `pointer` or `content`, drawn as diamonds.
    """
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    groups = list(control.settings["groups"])
    for side, (word, evidence) in enumerate((("new_object", control), ("pointed_object", pointer))):
        table = group_effects(evidence)
        found = [over_prompts(table[table["group"] == group], word) for group in groups]
        means = np.array([one.mean for one in found])
        ends = np.array([[one.mean - one.low, one.high - one.mean] for one in found]).T
        axes.bar(
            np.arange(len(groups)) + (side - 0.5) * WIDTH,
            means,
            WIDTH,
            yerr=ends,
            edgecolor=OKABE_ITO["blue"],
            ecolor=OKABE_ITO["black"],
            capsize=2,
            label=f"{readable(evidence.settings['kind'])}: {word}",
            **LOOKS[word],  # type: ignore[arg-type]  # mypy spreads the values over all keywords
        )
        named = [(place, (printed or {}).get((group, MEASURED[word]))) for place, group in enumerate(groups)]
        papers = [(place + (side - 0.5) * WIDTH, value) for place, value in named if value is not None]
        for at, value in papers:
            axes.plot(at, value, "D", mfc="none", color=PAPERS, label="_" if side or at != papers[0][0] else "paper")
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlabel(f"patched group ({readable(control.settings['mode'])} places)")
    axes.set_ylabel("change of the word's logit")
    axes.legend()
    return figure
