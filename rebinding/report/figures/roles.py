"""The figure of section 4.2: the effect of patching each group on the counterfactual's object and the pointed
object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.roles.request import ROLES
from rebinding.experiments.roles.summary import group_effects
from rebinding.report.figures.figure import (
    LETTERING,
    OKABE_ITO,
    SMALLEST,
    FigureSpec,
    cut_label,
    over_prompts,
    readable,
    shows,
)
from rebinding.report.folder import ReportedModel

MODE_TITLES = {"published": "as released", "paper": "as the text says", "own_role": "controlled"}
"""Titles of the modes of patching, in the order of drawing."""
PANEL_FACETS = ("mode", "direction", "design", "cut")
WIDTH = 0.38
CONTROLLED = "own_role"
PAPERS = OKABE_ITO["vermillion"]
MEASURED = {"new_object": "content", "pointed_object": "pointer"}
"""The names of the paper's numbers, by the measured word."""
BAR_STYLES = {"new_object": {"hatch": "///", "facecolor": "white"}, "pointed_object": {"facecolor": OKABE_ITO["blue"]}}
Bars: TypeAlias = tuple[Evidence, Evidence]
"""Content control and pointer pairs, run under the same conventions."""


def draw_role_bars(model: ReportedModel) -> Figure | None:
    """Roles of the groups: a panel for each set of conventions."""
    panels = {name: bars for name, facets in role_panels(model).items() if (bars := _bars(model, facets))}
    if not panels:
        return None
    named = {name.removeprefix("roles."): value for name, value in model.printed_numbers.items() if "roles." in name}
    by_group = {(name.partition(".")[0], name.partition(".")[2]): value for name, value in named.items()}
    return role_bars(panels, printed=by_group, label=model.provenance)


def role_panels(model: ReportedModel) -> Mapping[str, Mapping[str, Facet]]:
    """The facets of each set of conventions under which this model's groups were patched, by title."""
    all_facets = [evidence.settings["facets"] for evidence in model.find_evidence(ROLES).values()]
    panels: list[Mapping[str, Facet]] = [{key: facets.get(key) for key in PANEL_FACETS} for facets in all_facets]
    ordered = sorted(panels, key=lambda panel: (list(MODE_TITLES).index(str(panel["mode"])), str(panel)))
    return {_title(panel): panel for panel in ordered}


def _title(facets: Mapping[str, Facet]) -> str:
    title = f"{MODE_TITLES[str(facets['mode'])]}: {facets['design']}, direction {facets['direction']}"
    return f"{title}{cut_label(facets['cut'])}"


def _bars(model: ReportedModel, facets: Mapping[str, Facet]) -> Bars | None:
    control, pointer = (
        model.find_largest_evidence(ROLES, pairs=pairs, patched=None, **facets)
        for pairs in ("content_control", "pointer")
    )
    return None if control is None or pointer is None else (control, pointer)


@mpl.rc_context(LETTERING)
def role_bars(
    panels: Mapping[str, Bars], *, printed: Mapping[tuple[str, str], float] | None = None, label: str = "printed"
) -> Figure:
    """A panel for each set of conventions: grouped bars with 90 % intervals, the control's `new_object` hatched, the
    pointer's `pointed_object` filled.

    `printed` are the paper's numbers by group and by `pointer` or `content`, drawn as diamonds; not in the controlled
    panel, which is no candidate for them.
    """
    figure = Figure(figsize=(6.2, 1.0 + 1.9 * len(panels)), layout="constrained")
    axes_of_panels = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    for axes, (name, (control, pointer)) in zip(axes_of_panels, panels.items(), strict=True):
        measured = control.settings["mode"] != CONTROLLED
        _panel(axes, control, pointer, (printed or {}) if measured else {}, label)
        axes.set_title(name, fontsize=SMALLEST, loc="left")
    axes_of_panels[-1].set_xlabel("patched group")
    figure.supylabel("change of the word's logit (logits)", fontsize=SMALLEST)
    figure.legend(*axes_of_panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _panel(
    axes: Axes, control: Evidence, pointer: Evidence, printed: Mapping[tuple[str, str], float], label: str
) -> None:
    """The bars of one panel."""
    groups = list(control.settings["groups"])
    for side, (word, evidence) in enumerate((("new_object", control), ("pointed_object", pointer))):
        table = group_effects(evidence)
        intervals = [over_prompts(table[table["group"] == group], word) for group in groups]
        means = np.array([interval.mean for interval in intervals])
        ends = np.array([[interval.mean - interval.low, interval.high - interval.mean] for interval in intervals]).T
        axes.bar(
            np.arange(len(groups)) + (side - 0.5) * WIDTH,
            means,
            WIDTH,
            yerr=ends,
            edgecolor=OKABE_ITO["blue"],
            ecolor=OKABE_ITO["black"],
            capsize=2,
            label=f"{readable(evidence.settings['kind'])}: {word}",
            **BAR_STYLES[word],  # type: ignore[arg-type]  # mypy spreads the values over all keywords
        )
        named = [(place, printed.get((group, MEASURED[word]))) for place, group in enumerate(groups)]
        papers = [(place + (side - 0.5) * WIDTH, value) for place, value in named if value is not None]
        for at, value in papers:
            axes.plot(at, value, "D", mfc="none", color=PAPERS, label="_" if side or at != papers[0][0] else label)
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "roles",
        "roles",
        "Effect of patching each group",
        "Compare with the paper's bars of head roles.",
        "There, B moves the pointed object and not the new one. Diamonds: numbers printed in the paper, or declared"
        " with a plant.",
        "Change of the logit of the pointed object (filled) and of the new object (hatched), for each group, under the"
        " procedure of the released code, of the paper's text, and under the controlled procedure.",
        (shows(ROLES),),
        draw_role_bars,
        shares="y",
    ),
)
