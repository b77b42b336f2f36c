"""The figure of section 4.2: what patching each group does to the counterfactual's object and to the pointed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.figure import FigureSpec, ReportedModel, cut_label, shows
from rebinding.experiments.plots import LETTERING, OKABE_ITO, SMALLEST, over_prompts, readable
from rebinding.experiments.roles.request import ROLES
from rebinding.experiments.roles.summary import group_effects

WAYS = {"published": "as released", "paper": "as the text says", "own_role": "controlled"}
"""What the ways of patching are called, in the order in which they are drawn."""
BY_WAY = ("mode", "direction", "design", "cut")
WIDTH = 0.38
CONTROLLED = "own_role"
PAPERS = OKABE_ITO["vermillion"]
MEASURED = {"new_object": "content", "pointed_object": "pointer"}
"""What the paper's numbers are called, by the word that is measured."""
LOOKS = {"new_object": {"hatch": "///", "facecolor": "white"}, "pointed_object": {"facecolor": OKABE_ITO["blue"]}}
Bars: TypeAlias = tuple[Evidence, Evidence]
"""Content control and pointer pairs, run under the same conventions."""


def draw_role_bars(model: ReportedModel) -> Figure | None:
    """Roles of the groups, once for every way in which they were patched."""
    ways = {name: both for name, facets in role_ways(model).items() if (both := _both(model, facets))}
    if not ways:
        return None
    named = {name.removeprefix("roles."): value for name, value in model.printed.items() if "roles." in name}
    by_group = {(name.partition(".")[0], name.partition(".")[2]): value for name, value in named.items()}
    return role_bars(ways, printed=by_group)


def role_ways(model: ReportedModel) -> Mapping[str, Mapping[str, Facet]]:
    """The facets of every way in which this model's groups were patched, by a name for people."""
    told = [one.settings["facets"] for one in model.of(ROLES).values()]
    found: list[Mapping[str, Facet]] = [{key: one.get(key) for key in BY_WAY} for one in told]
    ordered = sorted(found, key=lambda one: (list(WAYS).index(str(one["mode"])), str(one)))
    return {_section(one): one for one in ordered}


def _section(facets: Mapping[str, Facet]) -> str:
    told = f"{WAYS[str(facets['mode'])]}: {facets['design']}, direction {facets['direction']}"
    return f"{told}{cut_label(facets['cut'])}"


def _both(model: ReportedModel, facets: Mapping[str, Facet]) -> Bars | None:
    control, pointer = (model.one(ROLES, pairs=pairs, **facets) for pairs in ("content_control", "pointer"))
    return None if control is None or pointer is None else (control, pointer)


@mpl.rc_context(LETTERING)
def role_bars(ways: Mapping[str, Bars], *, printed: Mapping[tuple[str, str], float] | None = None) -> Figure:
    """A panel for every way in which the groups were patched: grouped bars with 95 % intervals, the control's
    `new_object` hatched, the pointer's `pointed_object` filled.

    `printed` are the paper's numbers by group and by `pointer` or `content`, drawn as diamonds
    beside bars of which they may be numbers: not in the controlled panel.
    """
    figure = Figure(figsize=(6.2, 1.0 + 1.9 * len(ways)), layout="constrained")
    every = figure.subplots(len(ways), 1, sharey=True, squeeze=False)[:, 0]
    for axes, (name, (control, pointer)) in zip(every, ways.items(), strict=True):
        measured = control.settings["mode"] != CONTROLLED
        _panel(axes, control, pointer, (printed or {}) if measured else {})
        axes.set_title(name, fontsize=SMALLEST, loc="left")
    every[-1].set_xlabel("patched group")
    figure.supylabel("change of the word's logit", fontsize=SMALLEST)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _panel(axes: Axes, control: Evidence, pointer: Evidence, printed: Mapping[tuple[str, str], float]) -> None:
    """The bars of one way."""
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
        named = [(place, printed.get((group, MEASURED[word]))) for place, group in enumerate(groups)]
        papers = [(place + (side - 0.5) * WIDTH, value) for place, value in named if value is not None]
        for at, value in papers:
            axes.plot(at, value, "D", mfc="none", color=PAPERS, label="_" if side or at != papers[0][0] else "paper")
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "roles",
        "roles",
        "What the groups do",
        "Beside the paper's bars of head roles.",
        "There, B moves the pointed object and leaves the new one; the four printed numbers are diamonds.",
        "Change of logit of the pointed object (filled) and of the new object (hatched), for each group: as the code"
        " was released, as the text says, and under the controlled procedure.",
        (shows(ROLES),),
        draw_role_bars,
        shares="y",
    ),
)
