"""Figure of section 4.2: what patching each head group does to the counterfactual's object and to the pointed one."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.roles import group_effects
from rebinding.report.intervals import over_prompts
from rebinding.report.style import LETTERING, OKABE_ITO, readable

WIDTH = 0.38
LOOKS = {"egg": {"hatch": "///", "facecolor": "white"}, "rabbit": {"facecolor": OKABE_ITO["blue"]}}


@mpl.rc_context(LETTERING)
def role_bars(control: Evidence, pointer: Evidence) -> Figure:
    """Grouped bars: the content control's `egg` hatched, the pointer's `rabbit` filled, with 95 % intervals."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    groups = list(control.settings["groups"])
    for side, (word, evidence) in enumerate((("egg", control), ("rabbit", pointer))):
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
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlabel(f"patched group ({readable(control.settings['mode'])} places)")
    axes.set_ylabel("change of the word's logit")
    axes.legend()
    return figure
