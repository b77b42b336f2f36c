"""Figures of experiments show the numbers of the evidence and of the paper, each in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_CONDITIONS, QK, K, Q
from rebinding.experiments.binding.summary import summary
from rebinding.experiments.roles.request import SINGLE_HEADS
from rebinding.experiments.roles.summary import group_effects
from rebinding.paper.numbers import number
from rebinding.report.figures.binding import PAPERS, head_figure, printed_table, table_figure
from rebinding.report.figures.diagnostic import readout_figure
from rebinding.report.figures.figure import OKABE_ITO, PANEL_COLOURS
from rebinding.report.figures.roles import _bars, role_bars
from rebinding.report.figures.tracing import STRIPES, combined_map, mode_maps, striped
from rebinding.report.folder import ReportedModel, printed_numbers
from tests.experiments.setup import random_model
from tests.experiments.test_roles import run

LAYERS, TOKENS, FIRST, PROMPTS = 42, 100, 20, 3
READOUT = TOKENS - 1


def evidence(mode: str, acts: set[tuple[int, int]], base: float = 0.0) -> Evidence:
    """A map whose answer is restored in the cells (layer, token) of `acts` and nowhere else."""
    prompt, layer, token = (axis.ravel() for axis in np.indices((PROMPTS, LAYERS, TOKENS)))
    restored = np.zeros((LAYERS, TOKENS), dtype=bool)
    restored[tuple(np.array(sorted(acts)).T)] = True
    base_hit = prompt < base * PROMPTS
    role = np.where(token == READOUT, "readout", np.where(token == FIRST, "swap_asked", ""))
    columns = {"prompt": prompt, "layer": layer, "token": token, "role": role, "base_hit": base_hit}
    columns |= {"hit": restored[layer, token] | base_hit, "ran": token >= FIRST, "differs": token == FIRST}
    return Evidence("tracing", pd.DataFrame(columns | {"margin": 0.0, "base_margin": 0.0}), {"mode": mode})


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


def test_the_combined_map_has_every_panel_in_a_colour_of_its_own() -> None:
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
    assert set(PANEL_COLOURS.values()) <= set(OKABE_ITO.values())
    assert len(set(PANEL_COLOURS.values())) == len(PANEL_COLOURS)


def test_mode_maps_name_mode_and_base() -> None:
    figure = mode_maps({"object": evidence("target_box", {(0, FIRST)}, base=1 / 3)})
    axes, bar = figure.axes
    title = axes.get_title(loc="left")
    assert ("target_box" in title, "base 0.33" in title) == (True, True)
    assert "base 0.33" in [label.get_text() for label in bar.get_yticklabels()]
    grid = axes.images[0].get_array()
    assert grid[0, 0] == 1
    assert np.allclose(grid[1:], 1 / 3)
    nothing = combined_map({"object": evidence("target_box", {(0, FIRST)}, base=1.0)})
    (text,) = nothing.axes[0].get_legend().get_texts()
    assert "nothing to restore" in text.get_text()


def diagnostic() -> Evidence:
    rows = [
        {
            "prompt": number, "question": question, "place": place, "first": first, "last": last,
            "change": float(first + 10 * (place == "readout")), "original_correct": True,
            "counterfactual_correct": number == 0,
        }
        for number in range(2)
        for question in ("asked", "partner", "remaining")
        for place in ("swap_period", "readout")
        for first, last in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2))
    ]  # fmt: skip
    return Evidence("readout-diagnostic", pd.DataFrame(rows), {})


def test_the_readout_figure_has_a_panel_for_each_question_and_a_line_for_each_window() -> None:
    first, *others = readout_figure(diagnostic()).axes
    titles = [axes.get_title().split("\n")[0] for axes in (first, *others)]
    assert titles == [f"question about the {box} box" for box in ("asked", "partner", "remaining")]
    lines = {line.get_label(): line.get_xydata().tolist() for line in first.lines}
    assert lines["readout, one layer"] == [[0, 10], [1, 11], [2, 12]]
    assert lines["swap period, 2 layers"] == [[0.5, 0], [1.5, 1]]
    assert lines["readout, all layers"] == [[3, 10]]
    assert "100%, 50%" in first.get_title()


def test_large_figures_are_written(tmp_path: Path) -> None:
    maps = {panel: evidence(panel, {(3, FIRST)}) for panel in PANEL_COLOURS}
    for figure in (combined_map(maps), mode_maps(maps), readout_figure(diagnostic())):
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 10_000
        assert all(side < 30 for side in figure.get_size_inches())


def test_table_figure_has_our_means_and_the_papers_values() -> None:
    """A mark of ours in every line of every panel, at the mean; one of the paper's where it prints a number."""
    evidence = random_model("llama").binding("published", PUBLISHED_CONDITIONS, n=2)
    printed = printed_table(printed_numbers({"alias": "gemma2-9b"}))
    assert printed["q", "dR"] == number("binding.q.dR@gemma2-9b").value
    means = summary(evidence)
    for axes, measure in zip(table_figure(evidence, printed=printed).axes, ("dR", "dlogit", "switch"), strict=True):
        dots = [line.lines[0].get_xdata()[0] for line in axes.containers]
        np.testing.assert_allclose(dots, means[measure], rtol=1e-6)
        diamonds = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_color() == PAPERS}
        names = means["condition"].tolist()
        assert diamonds == {names.index(c): value for (c, m), value in printed.items() if m == measure and c in names}
        assert len(diamonds) == 6


def test_head_figure_has_every_head() -> None:
    bench = random_model("llama")
    figure = head_figure(bench.binding("published", (Q, K, QK), n=2))
    assert [len(axes.containers) for axes in figure.axes] == [len(bench.heads)] * 3


def test_bars_are_the_means_of_each_group() -> None:
    """Hatched: the content control's new object; filled: the pointed one."""
    control, pointer = (run(random_model("llama"), kind, single_heads=False) for kind in ("content_control", "pointer"))
    first, axes = role_bars({"one": (control, pointer), "other": (control, pointer)}).axes
    assert [first.get_title(loc="left"), axes.get_title(loc="left")] == ["one", "other"]
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    for container, word, evidence in zip(bars, ("new_object", "pointed_object"), (control, pointer), strict=True):
        means = group_effects(evidence).groupby("group")[word].mean()
        assert [bar.get_height() for bar in container.patches] == pytest.approx(means.tolist(), abs=1e-6)
        assert bool(container.patches[0].get_hatch()) == (word == "new_object")


def test_evidence_of_single_heads_has_no_bars() -> None:
    """It has some of the groups, and more rows than the whole groups have."""
    facets = {"mode": "published", "direction": "code", "design": "published", "cut": None}
    whole = [
        (run(random_model("llama"), kind, single_heads=False), kind, {}) for kind in ("content_control", "pointer")
    ]
    single = (run(random_model("llama"), "pointer", n=3), "pointer", {"patched": SINGLE_HEADS})
    pieces = {
        str(number): replace(piece, settings=piece.settings | {"facets": {**facets, **more, "pairs": pairs}})
        for number, (piece, pairs, more) in enumerate([*whole, single])
    }
    model = ReportedModel(1, {"name": "made up"}, Path())
    model.__dict__["evidence"] = pieces  # a cached property
    bars = _bars(model, facets)
    assert bars is not None
    assert bars[1] is pieces["1"]
    assert len(pieces["2"].rows) > len(pieces["1"].rows)
