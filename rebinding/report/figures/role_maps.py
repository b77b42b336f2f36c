"""The maps of section 3 at the tokens that the claims look at: layers x roles, in the order of the prompt.

Claims trace no more than they need, so a role that one mode was traced at may be missing from another: those cells are
hatched. The maps over every token are in `rebinding.report.figures.tracing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.summary import by_role
from rebinding.report.figures.style import LETTERING, MAP_COLOURS, PANEL_COLOURS, SMALLEST, readable
from rebinding.report.figures.tracing import striped

Grid = npt.NDArray[np.float64]


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
