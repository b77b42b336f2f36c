"""The figures of section 5: the Q/K table beside the paper's values, and dR head by head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.binding.summary import CASE, ReadoutKinds, When, by_unit, masses, per_example, per_head
from rebinding.report.figures.figure import (
    LETTERING,
    OKABE_ITO,
    FigureSpec,
    cut_label,
    draw_interval,
    interval_of,
    readable,
    shows,
)
from rebinding.report.folder import ReportedModel

MAIN = ("q", "k_both", "qk")
PANELS = {"dR": "dR (log attention ratio)", "dlogit": "dlogit (logits)", "switch": "switch (share of heads)"}
OURS, PAPERS = OKABE_ITO["blue"], OKABE_ITO["vermillion"]
PRINTED_RANDOM = "random_qk"
"""The condition at which the paper's row "Random" is drawn; the text does not say which of the three controls it is."""
SLOT_STYLES: Mapping[Literal["i", "j"], tuple[str, str]] = {"i": (OURS, "o"), "j": (OKABE_ITO["orange"], "s")}
"""The slot that a head attends to before, and the one that the shift points to."""
VARIED = ("controlled", "isolated", "third slot", "narrative", "random directions")


def draw_shift_table(model: ReportedModel) -> Figure | None:
    """The Q/K table as dots."""
    evidence = model.find_largest_evidence(BINDING, variation="published", cut=None)
    if evidence is None:
        return None
    return table_figure(evidence, printed=printed_table(model.printed_numbers), label=model.provenance)


def draw_shift_heads(model: ReportedModel) -> Figure | None:
    """dR of every head of group B."""
    evidence = model.find_largest_evidence(BINDING, variation="published", cut=None)
    return head_figure(evidence, conditions=MAIN) if evidence else None


def draw_shift_variations(model: ReportedModel) -> Figure | None:
    """The same shifts under the other variations."""
    cuts = {evidence.settings["facets"].get("cut") for evidence in model.find_evidence(BINDING).values()}
    variations = {
        f"{name}{cut_label(cut)}": evidence
        for name in ("published", "controlled", "isolated", "third slot", "narrative")
        for cut in sorted(cuts, key=lambda cut: cut or 0)
        if (evidence := model.find_largest_evidence(BINDING, variation=name, cut=cut)) is not None
    }
    return variation_figure(variations, conditions=MAIN) if len(variations) > 1 else None


def draw_attention(model: ReportedModel) -> Figure | None:
    """Attention of group B on the two slots, head by head."""
    evidence = model.find_largest_evidence(BINDING, variation="published", cut=None)
    return attention_figure(evidence) if evidence else None


@mpl.rc_context(LETTERING)
def attention_figure(evidence: Evidence, conditions: Sequence[str] = MAIN) -> Figure:
    """A panel before any edit and one for each condition: the attention of every head on slot i and slot j, mean over
    prompts, with intervals."""
    rows = evidence.rows
    heads = [f"{layer}.{head}" for layer, head in evidence.settings["heads"]]
    figure = Figure(figsize=(2.3 * (1 + len(conditions)), 1.7 + 0.24 * len(heads)), layout="constrained")
    panels = figure.subplots(1, 1 + len(conditions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (condition, when, title) in zip(panels, _moments(conditions), strict=True):
        of_condition = rows["condition"] == condition
        mass, chosen = masses(evidence, when)[of_condition], rows[of_condition]
        for slot, (colour, marker) in SLOT_STYLES.items():
            values = mass[np.arange(len(chosen)), chosen[slot].to_numpy()]
            table = chosen[[*CASE, "layer", "head"]].assign(mass=values)
            for line, (_, of_head) in enumerate(table.groupby(["layer", "head"])):
                label = f"slot {slot}" if line == 0 else None
                draw_interval(axes, interval_of(by_unit(of_head, "mass"), share=True), line, colour, label, marker)
        axes.set_title(title)
        axes.set_xlim(0, 1)
    panels[0].set_yticks(range(len(heads)), heads)
    panels[0].set_ylim(len(heads) - 0.5, -0.5)
    panels[0].set_ylabel("layer.head")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    figure.supxlabel("attention from the readout (share)")
    return figure


def _moments(conditions: Sequence[str]) -> Iterator[tuple[str, When, str]]:
    """The condition, before or after its edit, and the title of each panel."""
    yield conditions[0], "before", "before"
    for condition in conditions:
        yield condition, "after", f"shift of {readable(condition)}"


def printed_table(printed: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """The printed values of section 5, by condition and measure."""
    cells = [name.split(".") for name in printed if name.startswith("binding.")]
    return {
        (PRINTED_RANDOM if row == "random" else row, measure): printed[f"binding.{row}.{measure}"]
        for _, row, measure in cells
    }


@mpl.rc_context(LETTERING)
def table_figure(
    evidence: Evidence,
    *,
    readout: ReadoutKinds | None = None,
    printed: Mapping[tuple[str, str], float] | None = None,
    label: str = "printed",
) -> Figure:
    """A panel per measure, a line per condition: our mean with its interval, and the number that it is compared
    with."""
    examples = per_example(evidence, readout=readout)
    conditions = list(dict.fromkeys(examples["condition"]))
    figure = Figure(figsize=(9, 0.6 + 0.28 * len(conditions)), layout="constrained")
    for axes, (measure, title) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
        for line, condition in enumerate(conditions):
            dot(axes, examples[examples["condition"] == condition], measure, line, OURS)
            if printed and (condition, measure) in printed:
                axes.plot(printed[condition, measure], line, "D", ms=8, mfc="none", color=PAPERS, label=label)
        axes.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        axes.set_title(title)
        axes.set_yticks(range(len(conditions)), [readable(name) for name in conditions])
    axes.set_ylim(len(conditions) - 0.5, -0.5)
    figure.supxlabel(f"N = {examples['prompt'].nunique()} prompts, keys edited per {evidence.settings['scope']}")
    return figure


@mpl.rc_context(LETTERING)
def head_figure(
    evidence: Evidence, *, readout: ReadoutKinds | None = None, conditions: Sequence[str] = ("q", "k_both", "qk")
) -> Figure:
    """dR of every head, a panel per condition: an average over heads may come from a single head."""
    table = per_head(evidence, readout=readout)
    heads = [tuple(head) for head in evidence.settings["heads"]]
    figure = Figure(figsize=(2.6 * len(conditions), 0.8 + 0.22 * len(heads)), layout="constrained")
    panels = figure.subplots(1, len(conditions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, condition in zip(panels, conditions, strict=True):
        of_condition = table[table["condition"] == condition].set_index(["layer", "head"])
        for line, head in enumerate(heads):
            dot(axes, of_condition.loc[[head]].reset_index(), "dR", line, OURS)
        axes.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        axes.set_title(f"shift of {readable(condition)}")
        axes.set_xlabel("dR (log ratio)")
        axes.set_yticks(range(len(heads)), [f"{layer}.{head}" for layer, head in heads])
    panels[0].set_ylim(len(heads) - 0.5, -0.5)
    panels[0].set_ylabel("layer.head")
    return figure


@mpl.rc_context(LETTERING)
def variation_figure(
    variations: Mapping[str, Evidence], *, conditions: Sequence[str] = ("q", "k_both", "qk")
) -> Figure:
    """dR of the main conditions: a panel per condition, a line per variation of the experiment."""
    tables = {name: per_example(evidence) for name, evidence in variations.items()}
    figure = Figure(figsize=(2.4 * len(conditions), 0.8 + 0.28 * len(tables)), layout="constrained")
    panels = figure.subplots(1, len(conditions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, condition in zip(panels, conditions, strict=True):
        for line, table in enumerate(tables.values()):
            dot(axes, table[table["condition"] == condition], "dR", line, OURS)
        axes.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        axes.set_title(f"shift of {readable(condition)}")
        axes.set_xlabel("dR (log ratio)")
        axes.set_yticks(range(len(tables)), list(tables))
    panels[0].set_ylim(len(tables) - 0.5, -0.5)
    return figure


def dot(axes: Axes, table: pd.DataFrame, measure: str, line: float, colour: str, label: str | None = None) -> None:
    """Draw a mean with its interval; if a condition has several draws, also a pale dot for each draw."""
    draws = table.groupby("draw")[measure].mean().to_numpy()
    if len(draws) > 1:
        axes.plot(draws, np.full(len(draws), line), ".", color=colour, alpha=0.3)
    draw_interval(axes, interval_of(by_unit(table, measure), share=measure == "switch"), line, colour, label)


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "dots",
        "binding",
        "Shifts of queries and keys",
        "Compare with the paper's tables of the Q/K interventions.",
        "There, queries and keys each redirect attention, and both together cancel. Diamonds: numbers printed in the"
        " paper, or declared with a plant.",
        "Change of the log attention ratio and of the logit margin, and share of heads that switch to the other slot,"
        " with 90 % intervals.",
        (shows(BINDING, variation="published"),),
        draw_shift_table,
        shares="x",
    ),
    FigureSpec(
        "heads",
        "binding",
        "Shifts of queries and keys, head by head",
        "Not in the paper, whose averages hide single heads.",
        "",
        "Change of the log attention ratio (dR) of every head of group B, for shifts of the query, the keys and both.",
        (shows(BINDING, variation="published"),),
        draw_shift_heads,
        shares="x",
    ),
    FigureSpec(
        "attention",
        "binding",
        "Attention of group B before and after the shifts",
        "Not in the paper, which reports log ratios alone.",
        "",
        "Attention of every head of group B on the tokens of slot i and slot j that rows read: before any edit, and"
        " with the query, the keys and both shifted from i to j; means over prompts with 90 % intervals.",
        (shows(BINDING, variation="published"),),
        draw_attention,
    ),
    FigureSpec(
        "variations",
        "robust",
        "Shifts of queries and keys under other procedures",
        "Not in the paper, which runs one ordered pair of slots on keys of whole KV groups.",
        "",
        "Change of the log attention ratio (dR) for shifts of the query, the keys and both: published, controlled, on"
        " single heads, to the third slot, and in stories with a narrator.",
        tuple(shows(BINDING, variation=name) for name in VARIED),
        draw_shift_variations,
        shares="x",
    ),
)
