"""Figures of section 3 over every token: the combined map of the three roles, a map per mode, the readout
diagnostic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rebinding.evidence import Evidence
from rebinding.experiments.plots import LETTERING, MAP_COLOURS, PANEL_COLOURS, SITE_COLOURS, SMALLEST, readable
from rebinding.experiments.tracing.summary import by_token

FLOOR = 0.05
"""The least normalised IIA at which a role colours a cell of the combined map."""
NEAR = 0.08
"""Numbers closer than this would overlap at a colour bar."""
STRIPES = 6
"""Columns of a cell: divisible by one, two and three roles."""


@mpl.rc_context(LETTERING)
def combined_map(maps: Mapping[Any, Evidence]) -> Figure:
    """Layers x tokens, a colour for each role (keys of `maps`: panels), stronger where normalised IIA is higher.

    A cell in which several roles act is split among them, so that no colour is a mixture.
    """
    tables = {panel: by_token(evidence) for panel, evidence in maps.items()}
    first = min(_first_token(table) for table in tables.values())
    grids = np.stack([_grid(table, "normalised", first) for table in tables.values()])  # (panel, layer, token)
    colours = np.array([mpl.colors.to_rgb(PANEL_COLOURS[panel]) for panel in maps])  # (panel, 3)
    figure, (axes,) = _canvas(grids.shape[1:], 1)
    axes.imshow(striped(grids, colours), aspect="auto", origin="lower", extent=_extent(grids.shape[1:]))
    _label(axes, tables.values(), first)
    names = [f"{readable(panel)}: {_mode(evidence)}" for panel, evidence in maps.items()]
    patches = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=1)
    figure.supxlabel(_note_on_skipped_tokens(first), fontsize=SMALLEST)
    return figure


@mpl.rc_context(LETTERING)
def mode_maps(maps: Mapping[Any, Evidence]) -> Figure:
    """A map of raw IIA per mode. The line in its colour bar is the base: the hits of the unpatched counterfactual."""
    tables = {name: by_token(evidence) for name, evidence in maps.items()}
    first = min(_first_token(table) for table in tables.values())
    shape = _grid(next(iter(tables.values())), "iia", first).shape
    figure, panels = _canvas(shape, len(maps))
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        grid = _grid(table, "iia", first)
        image = axes.imshow(
            grid, aspect="auto", origin="lower", extent=_extent(shape), vmin=0, vmax=1, cmap=MAP_COLOURS
        )
        bar = figure.colorbar(image, ax=axes, label="IIA", pad=0.01, fraction=0.03)
        base = float(table["base"].iloc[0])
        bar.ax.axhline(base, color="white", linewidth=4)
        bar.ax.axhline(base, color="black", linewidth=2)
        ticks = {end: str(end) for end in (0, 1) if abs(end - base) > NEAR} | {base: f"base {base:.2f}"}
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
        axes.set_title(f"{readable(name)}: {_mode(maps[name])}", loc="left")
        _label(axes, [table], first)
        axes.tick_params("x", labelbottom=axes is panels[-1])
    figure.supxlabel(_note_on_skipped_tokens(first), fontsize=SMALLEST)
    return figure


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


def striped(grids: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """An image (layer, token * STRIPES, 3) of values (panel, layer, token): cells are divided among their roles."""
    values = np.clip(np.nan_to_num(grids), 0, 1)
    active = values > FLOOR
    count, rank = active.sum(axis=0), active.cumsum(axis=0) - 1  # (layer, token), (panel, layer, token)
    image = np.ones((*count.shape, STRIPES, 3))  # (layer, token, stripe, 3)
    for stripe in range(STRIPES):
        chosen = active & (rank == stripe * count // STRIPES)  # at most one panel a cell
        tint = 1 - values[..., None] * (1 - colours[:, None, None])  # (panel, layer, token, 3)
        image[:, :, stripe] = np.where(chosen.any(axis=0)[..., None], (tint * chosen[..., None]).sum(axis=0), 1.0)
    return image.reshape(count.shape[0], -1, 3)


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


def _canvas(shape: tuple[int, ...], panels: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure that keeps cells and names legible from 6 layers to 48 and from 20 tokens to 120."""
    layers, tokens = shape
    width, height = max(7.0, 0.13 * tokens + 2.0), max(1.6, 0.11 * layers) + 0.4
    figure = Figure(figsize=(width, height * panels + 1.8), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(panels, 1, sharex=True)))


def _grid(table: pd.DataFrame, column: str, first: int) -> np.ndarray:
    """A column as (layer, token) from the token `first` on."""
    wide = table[table["token"] >= first].pivot(index="layer", columns="token", values=column)
    return wide.to_numpy()


def _first_token(table: pd.DataFrame) -> int:
    """The first token at which anything was run."""
    return int(table.loc[table["ran"] > 0, "token"].min())


def _extent(shape: Sequence[int]) -> tuple[float, float, float, float]:
    return -0.5, shape[1] - 0.5, -0.5, shape[0] - 0.5


def _label(axes: Axes, tables: Any, first: int) -> None:
    """Role names on the token axis, numbers on the layer axis."""
    names: dict[int, str] = {}
    for table in tables:
        named = table[(table["token"] >= first) & (table["role"] != "")]
        names |= dict(zip(named["token"] - first, named["role"], strict=True))
    axes.set_xticks(list(names), [readable(name) for name in names.values()], rotation=90)
    layers = sorted({layer for table in tables for layer in table["layer"]})
    step = max(1, len(layers) // 8)
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axes.set_ylabel("layer (its input)")


def _mode(evidence: Evidence) -> str:
    """The mode with the numbers to report with every normalised IIA."""
    base = evidence.rows.drop_duplicates("prompt")["base_hit"].mean()
    note = ", nothing to restore" if base == 1 else ""
    return f"{evidence.settings['mode']} (base {base:.2f}{note}, N = {evidence.rows['prompt'].nunique()})"


def _note_on_skipped_tokens(first: int) -> str:
    return f"Tokens before {first} are the same in every pair, and patching them changes nothing." if first else ""
