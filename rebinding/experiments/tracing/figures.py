"""The figures of section 3: maps at the tokens that have a role, layers x roles, in the order of the prompt.

Claims trace no more than they need, so a role that one mode was traced at may be missing from another: those cells are
hatched. The maps over every token are in `rebinding.experiments.tracing.token_maps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.figure import FigureSpec, ReportedModel, shows
from rebinding.experiments.plots import LETTERING, MAP_COLOURS, PANEL_COLOURS, SMALLEST, readable
from rebinding.experiments.tracing.panels import PANELS
from rebinding.experiments.tracing.request import DIAGNOSTIC, EVERY_TOKEN, TRACING
from rebinding.experiments.tracing.summary import by_role
from rebinding.experiments.tracing.token_maps import combined_map, readout_figure, striped

MAP_SAYS = (
    "That figure has colours and no numbers: labels matter from the swap sentence on, the object goes from its own"
    " token to the last one."
)
PLACES = "layers from bottom to top, tokens with a role from left to right"
Grid = npt.NDArray[np.float64]


def tracing_figures(boxes: int, section: str, suffix: str, note: str) -> tuple[FigureSpec, ...]:
    """The figures of section 3, with so many boxes."""
    return (
        FigureSpec(
            f"tracing{suffix}",
            section,
            "Where the answer comes from",
            f"Beside the paper's figure of information flow{note}.",
            MAP_SAYS,
            f"Normalised IIA of three edits in three colours; {PLACES}. White: nothing, or not traced with that edit.",
            (shows(TRACING, boxes=boxes),),
            draw_combined_map(boxes),
        ),
        FigureSpec(
            f"flow{suffix}",
            section,
            "The same, over every token",
            f"Beside the paper's figure of information flow{note}, whose axis is the whole prompt.",
            MAP_SAYS,
            "Normalised IIA of three edits in three colours; layers from bottom to top, all tokens from the first that"
            " differs, those with a role named. `pytest claims --every-token` traces them.",
            (shows(TRACING, boxes=boxes, roles=EVERY_TOKEN, design="published"),),
            draw_token_map(boxes),
            special=True,
        ),
        FigureSpec(
            f"modes{suffix}",
            section,
            "The same, one map for each edit",
            f"Beside the appendix's maps, one for each edit{note}.",
            MAP_SAYS,
            f"Raw IIA, with the base of the unpatched counterfactual; {PLACES}. Hatched: not traced.",
            (shows(TRACING, boxes=boxes),),
            draw_mode_maps(boxes),
        ),
        FigureSpec(
            f"readout{suffix}",
            section,
            "Where the state is resolved",
            f"Beside the appendix's readout diagnostic{note}.",
            "There, patching the end of the swap helps the question about the asked box, and patching the readout helps"
            " every question.",
            "Change of the margin by layer, for each question and both places of the patch.",
            (shows(DIAGNOSTIC, boxes=boxes),),
            draw_diagnostic(boxes),
            shares="y",
        ),
    )


def draw_combined_map(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The three roles of the tracing figure in one map."""

    def draw(model: ReportedModel) -> Figure | None:
        found = maps_by_mode(model, boxes)
        maps: dict[str, Evidence] = {str(panel): found[one.mode] for panel, one in PANELS.items() if one.mode in found}
        return combined_role_map(maps) if maps else None

    return draw


def draw_token_map(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The same over all tokens, where all were traced, in the published stories: there a token has the same role in
    every prompt."""
    told: dict[str, Facet] = {"boxes": boxes, "roles": EVERY_TOKEN, "design": "published"}

    def draw(model: ReportedModel) -> Figure | None:
        found = {panel: model.one(TRACING, mode=one.mode, **told) for panel, one in PANELS.items()}
        maps = {panel: evidence for panel, evidence in found.items() if evidence is not None}
        return combined_map(maps) if maps else None

    return draw


def draw_mode_maps(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """One map for every mode."""

    def draw(model: ReportedModel) -> Figure | None:
        found = maps_by_mode(model, boxes)
        return mode_role_maps(found) if found else None

    return draw


def draw_diagnostic(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The readout diagnostic."""

    def draw(model: ReportedModel) -> Figure | None:
        found = model.one(DIAGNOSTIC, boxes=boxes, design="published") or model.one(DIAGNOSTIC, boxes=boxes)
        return readout_figure(found) if found else None

    return draw


def maps_by_mode(model: ReportedModel, boxes: int) -> Mapping[str, Evidence]:
    """The tracing maps by mode, of the published stories where there are any."""
    found: dict[str, Evidence] = {}
    for facets in ({}, {"design": "published"}):
        names = dict.fromkeys(str(one.settings["mode"]) for one in model.of(TRACING, boxes=boxes, **facets).values())
        maps = {mode: model.one(TRACING, boxes=boxes, mode=mode, **facets) for mode in names}
        found |= {mode: one for mode, one in maps.items() if one is not None}
    return found


@mpl.rc_context(LETTERING)
def combined_role_map(maps: Mapping[str, Evidence]) -> Figure:
    """A colour for each role that was edited (keys of `maps`: panels), stronger where normalised IIA is higher."""
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
    """One map of raw IIA a mode, with the base (the hits of the unpatched counterfactual) in its title."""
    roles, layers = places(maps.values())
    columns = 2 if len(maps) > 1 else 1
    lines = -(-len(maps) // columns)
    size = (6.8, 1.2 + lines * (1.0 + 0.07 * len(layers)))
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in list(every.flat)[len(maps) :]:
        axes.set_axis_off()
    for axes, (name, evidence) in zip(every.flat, maps.items(), strict=False):
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
    figure.colorbar(image, ax=every, label="IIA", location="right", fraction=0.03)
    return figure


def places(maps: Iterable[Evidence]) -> tuple[list[str], list[int]]:
    """All roles that were traced, in the order of the prompt, and all layers."""
    rows = pd.concat([one.rows[["role", "token", "layer"]].astype({"role": str}) for one in maps])
    rows = rows[rows["role"] != ""]
    order = rows.groupby("role")["token"].mean().sort_values(kind="stable")
    return [str(role) for role in order.index], sorted({int(layer) for layer in rows["layer"]})


def grid(evidence: Evidence, column: str, roles: Sequence[str], layers: Sequence[int]) -> Grid:
    """A column as (layer, role), NaN where the mode was not traced."""
    table = by_role(evidence).astype({"role": str}).pivot(index="layer", columns="role", values=column)
    return table.reindex(index=list(layers), columns=list(roles)).to_numpy(dtype=np.float64)


def untraced(axes: Axes, cells: npt.NDArray[np.bool_]) -> None:
    """Hatch the columns of which nothing is known."""
    for role in np.flatnonzero(cells.all(axis=0)):
        box = Rectangle((role - 0.5, -0.5), 1, len(cells), facecolor="none", edgecolor="0.6", hatch="//", linewidth=0)
        axes.add_patch(box)


def label(axes: Axes, roles: Sequence[str], layers: Sequence[int]) -> None:
    """Role names below, numbers of layers on the left."""
    axes.set_xticks(range(len(roles)), [readable(role) for role in roles], rotation=90, fontsize=SMALLEST)
    step = max(1, len(layers) // 8)
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]], fontsize=SMALLEST)
    axes.set_ylabel("layer (its input)")


def _extent(shape: Sequence[int]) -> tuple[float, float, float, float]:
    return -0.5, shape[1] - 0.5, -0.5, shape[0] - 0.5


FIGURES: tuple[FigureSpec, ...] = (
    *tracing_figures(3, "tracing", "", ""),
    *tracing_figures(5, "five", "-five", ", with five boxes and a swap that distracts"),
)
