"""Figures show what the evidence says: colours where a role acts, labels where it stands, the base beside a map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.report.figures.figure import OKABE_ITO, PANEL_COLOURS
from rebinding.report.figures.tracing import STRIPES, combined_map, mode_maps, readout_figure, striped

LAYERS, TOKENS, FIRST, PROMPTS = 42, 100, 20, 3
READOUT = TOKENS - 1


def evidence(mode: str, acts: set[tuple[int, int]], base: float = 0.0) -> Evidence:
    """A map whose answer is restored in the cells (layer, token) of `acts` and nowhere else."""
    prompt, layer, token = (axis.ravel() for axis in np.indices((PROMPTS, LAYERS, TOKENS)))
    restored = np.zeros((LAYERS, TOKENS), dtype=bool)
    restored[tuple(np.array(sorted(acts)).T)] = True
    base_hit = prompt < base * PROMPTS
    role = np.where(token == READOUT, "readout", np.where(token == FIRST, "swap_asked", ""))
    table = pd.DataFrame(
        {
            "prompt": prompt,
            "layer": layer,
            "token": token,
            "role": role,
            "hit": restored[layer, token] | base_hit,
            "base_hit": base_hit,
            "margin": 0.0,
            "base_margin": 0.0,
            "ran": token >= FIRST,
            "differs": token == FIRST,
        }
    )
    return Evidence("tracing", table, {"mode": mode})


def test_a_cell_is_divided_among_the_roles_that_act() -> None:
    grids = np.zeros((3, 1, 4))
    grids[0, 0] = [1, 0, 1, 0.5]  # the first role acts in three cells, in the last one half
    grids[1, 0] = [0, 0, 1, 0.01]  # what is below the floor takes no room
    grids[2, 0] = [0, 0, 1, np.nan]
    colours = np.eye(3)
    image = striped(grids, colours).reshape(4, STRIPES, 3)
    assert np.array_equal(image[0], np.tile(colours[0], (STRIPES, 1)))
    assert np.array_equal(image[1], np.ones((STRIPES, 3)))
    assert np.array_equal(image[2], np.repeat(colours, STRIPES // 3, axis=0))
    assert np.allclose(image[3], [1, 0.5, 0.5])


def test_combined_map_has_every_panel() -> None:
    acts = {"reference_box": {(3, FIRST)}, "swap_target_box": {(3, 50)}, "object": {(41, READOUT)}}
    figure = combined_map({panel: evidence(panel, cells) for panel, cells in acts.items()})
    axes = figure.axes[0]
    image = axes.images[0].get_array()
    assert image.shape == (LAYERS, (TOKENS - FIRST) * STRIPES, 3)
    for panel, cells in acts.items():
        colour = [int(PANEL_COLOURS[panel][at : at + 2], 16) / 255 for at in (1, 3, 5)]
        ((layer, token),) = cells
        assert np.allclose(image[layer, (token - FIRST) * STRIPES], colour)
    assert (image < 1).any(axis=-1).sum() == 3 * STRIPES
    assert [label.get_text() for label in axes.get_xticklabels()] == ["swap asked", "readout"]
    assert axes.get_xticks().tolist() == [0, READOUT - FIRST]
    assert axes.images[0].origin == "lower"


def test_mode_maps_name_mode_and_base() -> None:
    figure = mode_maps({"object": evidence("target_box", {(0, FIRST)}, base=1 / 3)})
    axes, bar = figure.axes
    assert "target_box" in axes.get_title(loc="left")
    assert "base 0.33" in axes.get_title(loc="left")
    assert "base 0.33" in [label.get_text() for label in bar.get_yticklabels()]
    grid = axes.images[0].get_array()
    assert grid[0, 0] == 1
    assert np.allclose(grid[1:], 1 / 3)


def test_legend_says_if_nothing_can_be_restored() -> None:
    figure = combined_map({"object": evidence("target_box", {(0, FIRST)}, base=1.0)})
    (text,) = figure.axes[0].get_legend().get_texts()
    assert "nothing to restore" in text.get_text()


def diagnostic() -> Evidence:
    rows = [
        {
            "prompt": number,
            "question": question,
            "place": place,
            "first": first,
            "last": last,
            "change": float(first + 10 * (place == "readout")),
            "original_correct": True,
            "counterfactual_correct": number == 0,
        }
        for number in range(2)
        for question in ("asked", "partner", "remaining")
        for place in ("swap_period", "readout")
        for first, last in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2))
    ]
    return Evidence("readout-diagnostic", pd.DataFrame(rows), {})


def test_readout_figure() -> None:
    figure = readout_figure(diagnostic())
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == [
        "question about the asked box",
        "question about the partner box",
        "question about the remaining box",
    ]
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert lines["readout, one layer"].get_xydata().tolist() == [[0, 10], [1, 11], [2, 12]]
    assert lines["swap period, 2 layers"].get_xydata().tolist() == [[0.5, 0], [1.5, 1]]
    assert lines["readout, all layers"].get_xydata().tolist() == [[3, 10]]
    assert "100%, 50%" in figure.axes[0].get_title()


@pytest.mark.parametrize("kind", ["combined", "modes", "readout"])
def test_large_figures_are_written(kind: str, tmp_path: Path) -> None:
    maps = {panel: evidence(panel, {(3, FIRST)}) for panel in PANEL_COLOURS}
    draw = {"combined": lambda: combined_map(maps), "modes": lambda: mode_maps(maps)}
    figure = draw.get(kind, lambda: readout_figure(diagnostic()))()
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert all(side < 30 for side in figure.get_size_inches())


def test_colours_are_distinct() -> None:
    assert set(PANEL_COLOURS.values()) <= set(OKABE_ITO.values())
    assert len(set(PANEL_COLOURS.values())) == len(PANEL_COLOURS)
