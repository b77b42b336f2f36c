"""The figures of section 3: maps of layers x roles, with roles in the order of the prompt.

Claims trace only the roles that they need, so a role may be traced in one mode and not in another: the missing cells
are hatched. The maps over every token are in `rebinding.experiments.tracing.token_maps`.
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


def draw_diagnostic(boxes: int) -> Callable[[ReportedModel], Figure | None]:
    """The readout diagnostic."""

    def draw(model: ReportedModel) -> Figure | None:
        facets: dict[str, Facet] = {"boxes": boxes, "windows": "all"}
        evidence = model.find_largest_evidence(DIAGNOSTIC, design="published", **facets) or model.find_largest_evidence(
            DIAGNOSTIC, **facets
        )
        return readout_figure(evidence) if evidence else None

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


def _extent(shape: Sequence[int]) -> tuple[float, float, float, float]:
    return -0.5, shape[1] - 0.5, -0.5, shape[0] - 0.5


FIGURES: tuple[FigureSpec, ...] = (
    *tracing_figures(3, "tracing", "", ""),
    *tracing_figures(5, "five", "-five", ", with five boxes and a swap that distracts"),
)
