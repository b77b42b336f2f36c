"""Picture of a planted model: every head at its token and layer, with an arrow from the token it attends to.

`python -m tests.docs.picture [NAME] [FILE]` draws the attention of one prompt as it was measured, so a head that
did not do what its line says would be seen here.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rebinding.planted.plant import Plant, build, parse
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder

COLOURS = {
    "A": "#0072B2",
    "B": "#D55E00",
    "C": "#009E73",
    "D": "#CC79A7",
    "E": "#8C6D1F",
    "P": "#56B4E9",
    None: "#777777",
}
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
FILE = Path(__file__).parents[2] / "rebinding" / "planted" / "pointer.png"
"""The picture on the page about planted models."""
MIN_ATTENTION = 0.15
"""Attention below this is not drawn."""


def draw(plant: Plant, prompt: Encoded) -> Any:
    """A figure with tokens from left to right and layers from bottom to top."""
    from matplotlib.figure import Figure

    patterns = _patterns(plant, prompt)
    first = prompt.ids.index(plant.tokenizer.convert_tokens_to_ids("Context"))
    figure = Figure(figsize=(15, 6), layout="constrained")
    axes = figure.add_subplot()
    label_counts: Counter[tuple[int, int]] = Counter()  # names written so far at a (layer, token)
    for seat in plant.seats:
        layer, colour = seat.line.layer, COLOURS[seat.line.group]
        pattern = patterns[layer][seat.head]  # (query, key)
        pairs = [(query, key) for query, key in (pattern > MIN_ATTENTION).nonzero().tolist() if key >= first]
        for query, key in pairs:
            arrow = {"arrowstyle": "->", "color": colour, "lw": 2 * float(pattern[query, key]), "alpha": 0.8}
            axes.annotate("", xy=(query, layer + 0.75), xytext=(key, layer), arrowprops=arrow)
        if pairs and seat.line.group is not None:
            last = max(query for query, _ in pairs)
            height = layer + 0.8 - 0.2 * label_counts[layer, last]
            axes.text(last + 0.15, height, seat.line.name, color=colour, fontsize=9, weight="bold")
            label_counts[layer, last] += 1
    _finish(axes, plant, prompt, first)
    return figure


def _finish(axes: Any, plant: Plant, prompt: Encoded, first: int) -> None:
    words = [word.replace("\n", "\\n") for word in plant.tokenizer.convert_ids_to_tokens(prompt.ids)]
    axes.set_xlim(first - 0.7, len(words) + 1.5)
    axes.set_ylim(-0.2, plant.wiring.layers + 0.3)
    axes.set_xticks(range(first, len(words)), words[first:], rotation=90, fontsize=8)
    axes.set_yticks(range(plant.wiring.layers), [f"layer {layer}" for layer in range(plant.wiring.layers)])
    axes.spines[["top", "right"]].set_visible(False)
    groups = sorted({head.group for head in plant.circuit})
    for group in groups:
        axes.plot([], [], color=COLOURS[group], lw=3, label=f"group {group}")
    axes.plot([], [], color=COLOURS[None], lw=3, label="grammar")
    axes.legend(loc="upper left", ncols=len(groups) + 1, frameon=False, fontsize=9)
    axes.set_title(
        f"{plant.specification.name}: attention above {MIN_ATTENTION:g}, asked about Box {prompt.prompt.question}"
    )


@torch.no_grad()
def _patterns(plant: Plant, prompt: Encoded) -> list[Tensor]:
    """Attention of every layer: (head, query, key)."""
    out = plant.model(torch.tensor([prompt.ids]), output_attentions=True, use_cache=False)
    return [attention[0] for attention in out.attentions]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a plant on the first prompt with the partner named second."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.picture", description=__doc__)
    parser.add_argument("name", nargs="?", default="pointer")
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    plant = build(parse(options.name))
    (prompt,) = Encoder(plant.tokenizer).encode([design("partner_second").prompt(0)])
    draw(plant, prompt).savefig(options.file, dpi=110)
    print(options.file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
