"""How a fixed preference for slots imitates key dominance, on planted models: the figure of docs/key-dominance.md.

python -m rebinding.report.key_dominance docs/figures
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.binding.measures import per_example
from rebinding.report.binding_figures import dot
from rebinding.report.intervals import over_prompts
from rebinding.report.style import DPI, LETTERING, OKABE_ITO

MECHANISMS = ("recency", "pointer")
COLOURS = {"published": OKABE_ITO["orange"], "counterbalanced": OKABE_ITO["blue"]}
CONDITIONS = {"q": "Q", "k_both": "K", "qk": "Q+K"}
BLOCK = 36
"""Ids over which the counterbalanced design with three boxes is balanced."""


@mpl.rc_context(LETTERING)
def key_dominance_figure(evidence: Mapping[tuple[str, str], Evidence]) -> Figure:
    """A row for every mechanism (keys: mechanism, design): both designs beside each other, and every pair of slots."""
    mechanisms = list(dict.fromkeys(mechanism for mechanism, _ in evidence))
    figure = Figure(figsize=(8, 2.6 * len(mechanisms)), layout="constrained")
    rows = figure.subplots(len(mechanisms), 2, squeeze=False, width_ratios=(3, 4))
    for (left, right), mechanism in zip(rows, mechanisms, strict=True):
        for place, (design, colour) in enumerate(COLOURS.items()):
            examples = per_example(evidence[mechanism, design])
            for line, condition in enumerate(CONDITIONS):
                one = examples[examples["condition"] == condition]
                dot(left, one, "dR", line + 0.2 * (place - 0.5), colour, label=None if line else design)
        left.set_yticks(range(len(CONDITIONS)), CONDITIONS.values())
        left.set_ylim(2.5, -0.5)
        left.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        left.set_title(f"{mechanism}: dR toward j")
        left.legend(loc="best")
        _by_pair(right, per_example(evidence[mechanism, "counterbalanced"]))
        right.set_title(f"{mechanism}: dR of K, by ordered pair")
    return figure


def _by_pair(axes: Axes, examples: pd.DataFrame) -> None:
    pairs = sorted({(int(i), int(j)) for i, j in zip(examples["i"], examples["j"], strict=True)})
    keys = examples[examples["condition"] == "k_both"]
    for place, (i, j) in enumerate(pairs):
        one = keys[(keys["i"] == i) & (keys["j"] == j)]
        found = over_prompts(one, "dR")
        colour = COLOURS["published" if (i, j) == (1, 0) else "counterbalanced"]
        axes.errorbar(place, found.mean, [[found.mean - found.low], [found.high - found.mean]], fmt="o", color=colour)
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(pairs)), [f"{i}→{j}" for i, j in pairs])


def planted_evidence(mechanism: str, design_name: str, *, n: int, architecture: str = "llama") -> Evidence:
    """Q, K and Q+K on the heads that a plant calls group B, as published or over all ordered pairs of slots."""
    from rebinding.experiments.binding.cases import every_pair
    from rebinding.experiments.binding.conditions import QK, K, Q
    from rebinding.experiments.binding.directions import measure_directions
    from rebinding.experiments.binding.shifts import run_binding
    from rebinding.planted import build
    from rebinding.surgery import TorchSurgeon, derive
    from rebinding.world.designs import design
    from rebinding.world.prompts import Encoder

    plant: Any = build(mechanism, architecture)
    surgeon, encoder = TorchSurgeon(plant.model, derive(plant.model)), Encoder(plant.tokenizer)
    heads = [(one.layer, one.head) for one in plant.circuit if one.group == "B"]
    balanced = design_name == "counterbalanced"
    shown = design("counterbalanced", split="evaluation") if balanced else design("published")
    asked = design("counterbalanced", split="directions") if balanced else design("published")
    prompts = {slot: encoder.encode(asked.direction(10_000 + n_, slot) for n_ in range(n)) for slot in range(3)}
    return run_binding(
        surgeon,
        encoder.encode(shown.prompt(number) for number in range(n)),
        measure_directions(surgeon, prompts, heads),
        heads,
        ids=range(n),
        token=encoder.answer_token,
        pairs=every_pair(3) if balanced else ((1, 0),),
        conditions=(Q, K, QK),
        scope="group" if not balanced else "head",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure of docs/key-dominance.md: planted models under the published and the counterbalanced design."""
    parser = argparse.ArgumentParser(prog="python -m rebinding.report.key_dominance", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=BLOCK, metavar="N")
    parser.add_argument("--architecture", default="llama")
    options = parser.parse_args(arguments)
    evidence = {
        (mechanism, name): planted_evidence(mechanism, name, n=options.samples, architecture=options.architecture)
        for mechanism in MECHANISMS
        for name in COLOURS
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "key-dominance.png"
    key_dominance_figure(evidence).savefig(path, dpi=DPI, bbox_inches="tight")
    print(path)


if __name__ == "__main__":
    main()
