"""Pictures of tables, recordings and graphs: what is grid is what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

import rebinding
from rebinding import Pairs, Read
from rebinding.surgery import SurgeryError
from tests.api.small import HEADS, LAYERS, LENGTH, model_of, prompts_of


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    with mpl.rc_context({"backend": "agg"}):
        yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def model() -> rebinding.Model:
    return model_of()


@pytest.fixture(scope="module")
def pairs(model: rebinding.Model) -> Pairs:
    return Pairs(prompts_of(model), prompts_of(model, first=2))


def test_a_tracing_map_has_the_mean_of_each_cell(model: rebinding.Model, pairs: Pairs) -> None:
    rows = rebinding.trace(model, pairs, layers=[0, 2])
    axes = rebinding.plot_trace(rows)
    grid = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert grid.shape == (2, LENGTH)
    cell = rows[(rows["layer"] == 2) & (rows["token"] == 5)]
    assert grid[1, 5] == pytest.approx(cell["margin"].mean())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2"]
    assert "readout" in [label.get_text() for label in axes.get_xticklabels()]
    assert axes.figure is not rebinding.plot_trace(rows).figure
    assert rebinding.plot_trace(rows, column="base_margin", axes=axes) is axes


def test_heads_are_at_their_layer_and_number(model: rebinding.Model, pairs: Pairs) -> None:
    scores = rebinding.patch_paths(model, pairs, senders=[(0, 1), (3, 4)])
    grid = np.ma.filled(rebinding.plot_heads(scores).images[0].get_array(), np.nan)
    assert grid.shape == (LAYERS, 5)
    by_head = {(row.layer, row.head): row.score for row in scores.itertuples()}
    assert grid[3, 4] == pytest.approx(by_head[3, 4])
    assert grid[0, 1] == pytest.approx(by_head[0, 1])
    assert np.isnan(grid).sum() == grid.size - 2


def test_attention_is_that_of_the_head_and_the_prompt(model: rebinding.Model, pairs: Pairs) -> None:
    recording = model.record(pairs.clean)
    (pattern,) = recording.read(Read("pattern", head=(2, HEADS - 1), at=range(LENGTH)))
    axes = rebinding.plot_attention(recording, (2, HEADS - 1), prompt=1)
    assert np.allclose(axes.images[0].get_array(), pattern[1].numpy())
    bars = rebinding.plot_attention(recording, (2, HEADS - 1), prompt=1, at="middle")
    assert np.allclose([bar.get_height() for bar in bars.patches], pattern[1, 7].numpy())


def test_a_graph_has_a_point_for_each_node() -> None:
    model = rebinding.load("planted:pointer")
    pairs = model.story_pairs(rebinding.design("counterbalanced", model), 12)
    graph = rebinding.discover(model, pairs, positions="all")
    axes = rebinding.plot_graph(graph, model.anatomy.n_layers)
    numbers = [text.get_text() for text in axes.texts if text.get_text()]
    assert sorted(numbers) == sorted(str(node.head) for node in graph.nodes)


def test_another_table_is_refused(model: rebinding.Model, pairs: Pairs) -> None:
    rows = rebinding.trace(model, pairs, layers=[0])
    with pytest.raises(SurgeryError, match=r"a table of rebinding\.patch_paths; the given one has no column 'head'"):
        rebinding.plot_heads(rows)
    with pytest.raises(SurgeryError, match="the given one has no rows"):
        rebinding.plot_trace(rows[:0])


def test_attention_of_what_is_not_there_is_refused(model: rebinding.Model, pairs: Pairs) -> None:
    recording = model.record(pairs.clean)
    with pytest.raises(SurgeryError, match="the recording has prompts 0 to 1"):
        rebinding.plot_attention(recording, (0, 0), prompt=7)
    with pytest.raises(SurgeryError, match="and one head"):
        rebinding.plot_attention(recording, [(0, 0), (1, 1)])  # type: ignore[arg-type]
