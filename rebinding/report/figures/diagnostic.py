"""The figures of the readout diagnostic: is the state ready at the swap's full stop, or resolved at the readout?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.tracing.request import DIAGNOSTIC
from rebinding.experiments.tracing.summary import margin_change
from rebinding.report.figures.figure import (
    LETTERING,
    SITE_COLOURS,
    FigureSpec,
    draw_interval,
    interval_of,
    readable,
    shows,
)
from rebinding.report.folder import ReportedModel


def draw_diagnostic(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The readout diagnostic."""

    def draw(model: ReportedModel) -> Figure | None:
        facets: dict[str, Facet] = {"boxes": boxes, "windows": "all"}
        evidence = model.find_largest_evidence(DIAGNOSTIC, design="published", **facets) or model.find_largest_evidence(
            DIAGNOSTIC, **facets
        )
        return readout_figure(evidence) if evidence else None

    return draw


@mpl.rc_context(LETTERING)
def readout_figure(evidence: Evidence) -> Figure:
    """Change of the counterfactual's margin over the original's answer, for each question, by layer and window."""
    rows = evidence.rows
    names = list(dict.fromkeys(rows["question"]))
    figure = Figure(figsize=(2 + 3 * len(names), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for axes, name in zip(panels, names, strict=True):
        of_question = rows[rows["question"] == name]
        for place, group in of_question.groupby("place", sort=False):
            _draw_site(axes, str(place), group)
        accuracy = of_question.drop_duplicates("prompt")[["original_correct", "counterfactual_correct"]].mean()
        axes.set_title(
            f"question about the {name} box\nanswered correctly: {accuracy.iloc[0]:.0%}, {accuracy.iloc[1]:.0%}"
        )
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xlabel("layer (a window at its middle)")
    panels[0].set_ylabel("change of the margin, counterfactual\nminus original answer (logits)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_site(axes: Axes, place: str, group: pd.DataFrame) -> None:
    """A band for single layers, dashes for windows, a diamond for all layers at once."""
    colour, top = SITE_COLOURS.get(place, "black"), int(group["last"].max())
    spans = group.groupby(["first", "last"], as_index=False)["change"].agg(["mean", "sem"])
    spans = spans.assign(middle=(spans["first"] + spans["last"]) / 2, width=spans["last"] - spans["first"] + 1)
    single = spans[spans["width"] == 1]
    axes.plot(single["middle"], single["mean"], color=colour, label=f"{readable(place)}, one layer")
    half = 1.96 * single["sem"].fillna(0)
    axes.fill_between(
        single["middle"], single["mean"] - half, single["mean"] + half, color=colour, alpha=0.2, linewidth=0
    )
    runs = spans[(spans["width"] > 1) & (spans["width"] <= top)]
    windows = runs[runs["width"] == runs["width"].min()]  # the longer one, which stops before the answer, is for rules
    if len(windows):
        label = f"{readable(place)}, {windows['width'].iloc[0]} layers"
        axes.plot(windows["middle"], windows["mean"], "--", color=colour, label=label)
    full = spans[spans["width"] == top + 1]
    axes.plot(top + 1, full["mean"], "D", color=colour, markersize=4, label=f"{readable(place)}, all layers")


def draw_places(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """What the rows on this evidence compare: the readout with the swap's full stop."""

    def draw(model: ReportedModel) -> Figure | None:
        designs = {"published": "published", "counterbalanced": "controlled"}
        panels = {
            procedure: evidence
            for design, procedure in designs.items()
            if (evidence := model.find_largest_evidence(DIAGNOSTIC, boxes=boxes, design=design)) is not None
        }
        return places_figure(panels) if panels else None

    return draw


@mpl.rc_context(LETTERING)
def places_figure(panels: Mapping[str, Evidence]) -> Figure:
    """A panel for each procedure: the change of the margin by either token, patched at every layer, by question."""
    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    axes_of_panels = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (procedure, evidence) in zip(axes_of_panels, panels.items(), strict=True):
        for offset, (place, colour) in zip((-0.12, 0.12), SITE_COLOURS.items(), strict=True):
            changes = margin_change(evidence, place, "every_layer")  # (prompt, question)
            for line, question in enumerate(changes):
                label = readable(place) if line == 0 else None
                draw_interval(axes, interval_of(changes[question].to_numpy()), line + offset, colour, label)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(changes.shape[1]), [f"{question} box" for question in changes])
        axes.set_title(f"{procedure}, N = {len(changes)} prompts")
        axes.set_xlabel("change of the margin (logits)")
    axes_of_panels[0].set_ylim(changes.shape[1] - 0.5, -0.5)
    figure.legend(*axes_of_panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


def diagnostic_figures(boxes: int, section: str, suffix: str, note: str) -> tuple[FigureSpec, ...]:
    """The figures for one number of boxes."""
    return (
        FigureSpec(
            f"places{suffix}",
            section,
            "Readout against the swap's full stop",
            f"Compare with section 3's mediation result{note}.",
            "There, patching the readout moves the answer more than patching the full stop.",
            "Change of the logit margin toward the counterfactual's answer, for each question and both patched tokens,"
            " at every layer together; means over prompts with 90 % intervals.",
            (shows(DIAGNOSTIC, boxes=boxes),),
            draw_places(boxes),
            shares="x",
        ),
        FigureSpec(
            f"readout{suffix}",
            section,
            "Readout diagnostic: where the swap is resolved",
            f"Compare with the appendix's readout diagnostic{note}.",
            "There, patching the swap's full stop helps the question about the asked box, and patching the readout"
            " helps every question.",
            "Change of the logit margin by layer, for each question and both patched tokens.",
            (shows(DIAGNOSTIC, boxes=boxes, windows="all"),),
            draw_diagnostic(boxes),
            shares="y",
        ),
    )


FIGURES: tuple[FigureSpec, ...] = (
    *diagnostic_figures(3, "tracing", "", ""),
    *diagnostic_figures(5, "five", "-five", ", with five boxes and a swap that distracts"),
)
