"""Pictures of what the public functions return, for notebooks; each returns matplotlib's axes.

Without `axes` each makes a figure of its own with pyplot, so that a notebook shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor

from rebinding.api.evaluation import Faithfulness
from rebinding.api.recording import Recording
from rebinding.api.sensitivity import Sensitivity
from rebinding.experiments.search.graph import Graph
from rebinding.paper.circuit import MLP, head_text
from rebinding.surgery.sites import Head, Position, Read, SurgeryError, is_one_head
from rebinding.task.text import word_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 40
"""Up to this many tokens are named on an axis; of more, those that have a name of their own."""


def plot_trace(rows: pd.DataFrame, *, column: str = "margin", axes: Axes | None = None) -> Axes:
    """The table of `trace`: the mean of a column over pairs, layers by tokens; cells that were not run are empty."""
    _check_columns(rows, "trace", "layer", "token", "place", "ran", column)
    grid = rows[rows["ran"]].pivot_table(index="layer", columns="token", values=column)
    grid = grid.reindex(columns=sorted(rows["token"].unique()))
    names = dict(zip(rows["token"], rows["place"].astype(str), strict=True))
    axes = axes or _new(1.5 + 0.28 * grid.shape[1], 1.5 + 0.16 * len(grid))
    image = axes.imshow(grid.to_numpy(), origin="lower", aspect="auto", cmap="viridis", interpolation="nearest")
    _label_tokens(axes, [names[token] for token in grid.columns])
    axes.set_yticks(range(len(grid)), [str(layer) for layer in grid.index])
    axes.set(ylabel="layer")
    axes.figure.colorbar(image, ax=axes, label=column)
    return axes


def plot_heads(scores: pd.DataFrame, *, axes: Axes | None = None) -> Axes:
    """The table of `patch_paths`: layers by heads, and MLPs if it has some; red where the answer loses without the
    output, blue where it gains; heads that are no senders are empty."""
    _check_columns(scores, "patch_paths", "layer", "head", "score")
    grid = scores.pivot(index="layer", columns="head", values="score")
    layers, has_mlps = range(int(scores["layer"].max()) + 1), MLP in grid.columns
    heads = [*range(int(scores["head"].max()) + 1), *([MLP] if has_mlps else [])]
    grid = grid.reindex(index=layers, columns=heads)
    most = float(scores["score"].abs().max()) or 1.0
    axes = axes or _new(2 + 0.25 * grid.shape[1], 1.2 + 0.18 * len(grid))
    image = axes.imshow(
        grid.to_numpy(), origin="lower", aspect="auto", cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest"
    )
    axes.set(xlabel="head", ylabel="layer")
    if has_mlps:
        axes.set_xticks(range(len(heads)), [head_text(head) for head in heads])
    axes.figure.colorbar(image, ax=axes, label="change of the answer's logit over the other candidates")
    return axes


def plot_attention(
    recording: Recording, head: Head, *, prompt: int = 0, at: Position | None = None, axes: Axes | None = None
) -> Axes:
    """The attention of a head in one prompt, queries by keys; with `at` only that query, as bars."""
    if not isinstance(recording, Recording) or not is_one_head(head):
        raise SurgeryError("plot_attention takes a Recording, model.record(prompts), and one head, (layer, head)")
    if not 0 <= prompt < len(recording.prompts):
        raise SurgeryError(f"prompt={prompt}: the recording has prompts 0 to {len(recording.prompts) - 1}")
    length = recording.prompts.length
    labels = [word_of(piece) for piece in recording.prompts.tokenized[prompt].pieces]
    pattern: Tensor = recording.read(Read("pattern", head=head, at=range(length) if at is None else [at]))[0][prompt]
    values = pattern.float().cpu().numpy()  # (query, key)
    axes = axes or _new(1.5 + 0.28 * length, 2.4 if at is not None else 1.5 + 0.24 * length)
    if at is None:
        image = axes.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_yticks(range(length), labels)
        axes.figure.colorbar(image, ax=axes, label="attention")
    else:
        axes.bar(range(length), values[0])
        axes.set(ylim=(0, 1), ylabel="attention")
    axes.set_xticks(range(length), labels, rotation=90)
    axes.set_title(f"head {head[0]}.{head[1]}{'' if at is None else f', from {at}'}", loc="left")
    return axes


def plot_faithfulness(curve: Faithfulness, *, axes: Axes | None = None) -> Axes:
    """The result of `faithfulness`: its curve with the interval over prompts, and the range of random circuits."""
    table = curve.table
    axes = axes or _new(6, 3.6)
    axes.fill_between(table["heads"], table["random_low"], table["random_high"], color="0.85")
    axes.plot(table["heads"], table["random_mean"], color="0.5", label="random heads, as many in each layer")
    axes.fill_between(table["heads"], table["low"], table["high"], color="C0", alpha=0.25)
    axes.plot(table["heads"], table["faithfulness"], "o-", color="C0", markersize=3, label="best heads")
    axes.axhline(1, color="0.3", linewidth=0.8, linestyle=":")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(0)
    axes.set(xlabel="heads of the circuit", ylabel="faithfulness")
    axes.legend(loc="best", frameon=False)
    return axes


COLOURS = {"yes": "C0", "no": "C3", "open": "0.5"}


def plot_sensitivity(result: Sensitivity, *, axes: Axes | None = None) -> Axes:
    """The result of `sensitivity`: faithfulness with its interval in every combination, by whether the circuit recovers
    the task, beside the mean of random circuits. Labels of lines in which a conclusion flips are red."""
    table = result.table
    axes = axes or _new(8, 1.4 + 0.22 * len(table))
    for conclusion, colour in COLOURS.items():
        own = table[table["recovers"] == conclusion]
        if len(own):
            around = [own["faithfulness"] - own["low"], own["high"] - own["faithfulness"]]
            label = f"recovers {result.share:.0%}: {conclusion}"
            axes.errorbar(own["faithfulness"], own.index, xerr=around, fmt="o", color=colour, markersize=4, label=label)
    axes.plot(table["random"], table.index, "|", color="0.2", markersize=9, label="random circuits, mean")
    axes.axvline(result.share, color="0.3", linewidth=0.8, linestyle=":")
    names = table["prompts"] + ", " + table["ablation"] + ", " + table["metric"]
    labels = axes.set_yticks(range(len(table)), names.where(table["flips"] == "", names + " *"))
    for tick, flips in zip(labels, table["flips"], strict=True):
        tick.label1.set_color("C3" if flips else "black")
    axes.set(xlabel="faithfulness (* and red: a conclusion flips)", ylim=(len(table) - 0.5, -0.5))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return axes


def plot_graph(graph: Graph, n_layers: int, *, axes: Axes | None = None) -> Axes:
    """A graph of `discover(positions="all")`: tokens by layers; an arrow is as thick as its effect, and dashed if it
    works against the answer."""
    from rebinding.report.figures.circuits import draw_graph_on, size_of_graph

    axes = axes or _new(*size_of_graph(graph, n_layers))
    draw_graph_on(axes, graph, n_layers, "found")
    return axes


def _new(width: float, height: float) -> Axes:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(min(width, 16.0), min(height, 16.0)), layout="constrained")
    return axes


def _label_tokens(axes: Axes, names: list[str]) -> None:
    own = [number for number, name in enumerate(names) if len(names) <= TICKS or not name.startswith("token ")]
    axes.set_xticks(own, [names[number] for number in own], rotation=90)


def _check_columns(table: pd.DataFrame, function: str, *columns: str) -> None:
    lacking = [name for name in columns if name not in table]
    if lacking or not len(table):
        what = f"column {lacking[0]!r}" if lacking else "rows"
        raise SurgeryError(f"this draws a table of rebinding.{function}; the given one has no {what}")
