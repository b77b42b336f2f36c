"""The figures of section 3: maps of layers by tokens, and the readout diagnostic.

Over every token there are the combined map of the three roles and a map per mode.

In maps of layers x roles the roles are in the order of the prompt.

Claims trace only the roles that they need, so a role may be traced in one mode and not in another: the missing cells
are hatched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.tracing.request import EVERY_TOKEN, TRACING
from rebinding.experiments.tracing.summary import by_role, by_token
from rebinding.report.figures.figure import (
    LETTERING,
    MAP_COLOURS,
    PANEL_COLOURS,
    SMALLEST,
    FigureSpec,
    readable,
    shows,
)
from rebinding.report.folder import ReportedModel
from rebinding.task.designs import ModeName

PanelName: TypeAlias = Literal["reference_box", "swap_target_box", "object"]


@dataclass(frozen=True)
class Panel:
    """A panel of the paper's figure: our mode for it, other possible modes, and the reason."""

    mode: ModeName
    alternatives: tuple[ModeName, ...]
    reason: str


PANELS: Mapping[PanelName, Panel] = MappingProxyType(
    {
        "reference_box": Panel(
            "swap_only",
            ("context_and_swap",),
            "It is the one configuration that was published, its counterfactual has an answer, and so its base is near"
            " 0. But it says nothing of the first mention, which is the same token in both prompts. For that take"
            " context_and_swap (the appendix speaks of this experiment's tokens in the plural): there the first mention"
            " differs and the one in the swap stays counterfactual while it is patched. Its counterfactual asks about"
            " an absent box, so its base can be anything: read it beside the map.",
        ),
        "swap_target_box": Panel(
            "swap_target_box_to_remaining_context_box",
            ("swap_target_box", "context_target_box_and_swap_query_box"),
            "The appendix speaks of one token. Of the two modes that edit the partner's mention alone, this one names a"
            " box that exists, so that the counterfactual is a story with an answer to every question. For the first"
            " mention take context_target_box_and_swap_query_box: it alone edits the partner's label there, keeps"
            " another edit, and changes the answer. (context_and_swap_target_box does not change it.)",
        ),
        "object": Panel(
            "target_box",
            (
                "swap_target_object_with_remaining_context_object",
                "context_target_object_and_swap_query_box",
            ),
            "The appendix speaks of one token, and this is the only mode that edits one object and changes the answer.",
        ),
    }
)
"""The paper does not say which edit made which panel; this is our reading."""


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


MAP_SAYS = (
    "That figure has colours and no numbers: labels matter from the swap sentence on, the object goes from its own"
    " token to the last one."
)
COMBINED = "Normalised interchange intervention accuracy (IIA) of three edits in three colours"
PLACES = "layers from bottom to top, tokens with a role from left to right"
Grid = npt.NDArray[np.float64]


def tracing_figures(boxes: int, section: str, suffix: str, note: str) -> tuple[FigureSpec, ...]:
    """The figures of section 3 for stories with `boxes` boxes."""
    return (
        FigureSpec(
            f"tracing{suffix}",
            section,
            "Information flow",
            f"Compare with the paper's figure of information flow{note}.",
            MAP_SAYS,
            f"{COMBINED}; {PLACES}. White: zero, or not traced with that edit.",
            (shows(TRACING, boxes=boxes),),
            draw_combined_map(boxes),
        ),
        FigureSpec(
            f"flow{suffix}",
            section,
            "Information flow over every token",
            f"Compare with the paper's figure of information flow{note}, whose axis is the whole prompt.",
            MAP_SAYS,
            f"{COMBINED}; layers from bottom to top, all tokens from the first that differs, those with a role named."
            " `pytest claims --every-token` traces them.",
            (shows(TRACING, boxes=boxes, roles=EVERY_TOKEN, design="published"),),
            draw_token_map(boxes),
            special=True,
        ),
        FigureSpec(
            f"modes{suffix}",
            section,
            "Information flow, one map for each edit",
            f"Compare with the appendix's maps, one for each edit{note}.",
            MAP_SAYS,
            f"Interchange intervention accuracy (IIA), and that of the unpatched counterfactual (base); {PLACES}."
            " Hatched: not traced.",
            (shows(TRACING, boxes=boxes),),
            draw_mode_maps(boxes),
        ),
    )


def draw_combined_map(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The three roles of the tracing figure in one map."""

    def draw(model: ReportedModel) -> Figure | None:
        by_mode = maps_by_mode(model, boxes)
        maps: dict[str, Evidence] = {
            name: by_mode[panel.mode] for name, panel in PANELS.items() if panel.mode in by_mode
        }
        return combined_role_map(maps) if maps else None

    return draw


def draw_token_map(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The same over all tokens, if all were traced in the published stories, where a token has the same role in every
    prompt."""
    facets: dict[str, Facet] = {"boxes": boxes, "roles": EVERY_TOKEN, "design": "published"}

    def draw(model: ReportedModel) -> Figure | None:
        by_panel = {
            name: model.find_largest_evidence(TRACING, mode=panel.mode, **facets) for name, panel in PANELS.items()
        }
        maps = {name: evidence for name, evidence in by_panel.items() if evidence is not None}
        return combined_map(maps) if maps else None

    return draw


def draw_mode_maps(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """One map for every mode."""

    def draw(model: ReportedModel) -> Figure | None:
        maps = maps_by_mode(model, boxes)
        return mode_role_maps(maps) if maps else None

    return draw


def maps_by_mode(model: ReportedModel, boxes: int) -> Mapping[str, Evidence]:
    """The tracing maps by mode; those of the published stories if there are any."""
    result: dict[str, Evidence] = {}
    for facets in ({}, {"design": "published"}):
        names = dict.fromkeys(
            str(evidence.settings["mode"]) for evidence in model.find_evidence(TRACING, boxes=boxes, **facets).values()
        )
        maps = {mode: model.find_largest_evidence(TRACING, boxes=boxes, mode=mode, **facets) for mode in names}
        result |= {mode: evidence for mode, evidence in maps.items() if evidence is not None}
    return result


@mpl.rc_context(LETTERING)
def combined_role_map(maps: Mapping[str, Evidence]) -> Figure:
    """A colour for each edited role (keys of `maps`: panels), stronger where normalised IIA is higher."""
    roles, layers = places(maps.values())
    grids = np.stack(
        [grid(evidence, "normalised", roles, layers) for evidence in maps.values()]
    )  # (panel, layer, role)
    colours = np.array([mpl.colors.to_rgb(PANEL_COLOURS[panel]) for panel in maps])  # (panel, 3)
    figure = Figure(figsize=(6.2, 2.6 + 0.09 * len(layers)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(striped(grids, colours), aspect="auto", origin="lower", extent=_extent(grids.shape[1:]))
    untraced(axes, np.asarray(np.isnan(grids).all(axis=0)))
    label(axes, roles, layers)
    names = [f"{readable(panel)}: mode {evidence.settings['mode']}" for panel, evidence in maps.items()]
    patches = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=1)
    return figure


@mpl.rc_context(LETTERING)
def mode_role_maps(maps: Mapping[str, Evidence]) -> Figure:
    """A map of raw IIA for each mode, with the base (the hits of the unpatched counterfactual) in its title."""
    roles, layers = places(maps.values())
    columns = 2 if len(maps) > 1 else 1
    lines = -(-len(maps) // columns)
    size = (6.8, 1.2 + lines * (1.0 + 0.07 * len(layers)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in list(panels.flat)[len(maps) :]:
        axes.set_axis_off()
    for axes, (name, evidence) in zip(panels.flat, maps.items(), strict=False):
        values = grid(evidence, "iia", roles, layers)
        image = axes.imshow(
            values, aspect="auto", origin="lower", extent=_extent(values.shape), vmin=0, vmax=1, cmap=MAP_COLOURS
        )
        untraced(axes, np.isnan(values))
        base = evidence.rows.drop_duplicates("prompt")["base_hit"].mean()
        axes.set_title(
            f"{readable(name)}\nbase {base:.2f}, N = {evidence.rows['prompt'].nunique()}", fontsize=SMALLEST, loc="left"
        )
        label(axes, roles, layers)
    figure.colorbar(image, ax=panels, label="IIA", location="right", fraction=0.03)
    return figure


def places(maps: Iterable[Evidence]) -> tuple[list[str], list[int]]:
    """All traced roles, in the order of the prompt, and all layers."""
    rows = pd.concat([evidence.rows[["role", "token", "layer"]].astype({"role": str}) for evidence in maps])
    rows = rows[rows["role"] != ""]
    order = rows.groupby("role")["token"].mean().sort_values(kind="stable")
    return [str(role) for role in order.index], sorted({int(layer) for layer in rows["layer"]})


def grid(evidence: Evidence, column: str, roles: Sequence[str], layers: Sequence[int]) -> Grid:
    """A column as (layer, role), NaN where the mode was not traced."""
    table = by_role(evidence).astype({"role": str}).pivot(index="layer", columns="role", values=column)
    return table.reindex(index=list(layers), columns=list(roles)).to_numpy(dtype=np.float64)


def untraced(axes: Axes, cells: npt.NDArray[np.bool_]) -> None:
    """Hatch the columns that were not traced."""
    for role in np.flatnonzero(cells.all(axis=0)):
        box = Rectangle((role - 0.5, -0.5), 1, len(cells), facecolor="none", edgecolor="0.6", hatch="//", linewidth=0)
        axes.add_patch(box)


def label(axes: Axes, roles: Sequence[str], layers: Sequence[int]) -> None:
    """Role names below, numbers of layers on the left."""
    axes.set_xticks(range(len(roles)), [readable(role) for role in roles], rotation=90, fontsize=SMALLEST)
    step = max(1, len(layers) // 8)
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]], fontsize=SMALLEST)
    axes.set_ylabel("layer (its input)")


FIGURES: tuple[FigureSpec, ...] = (
    *tracing_figures(3, "tracing", "", ""),
    *tracing_figures(5, "five", "-five", ", with five boxes and a swap that distracts"),
)
