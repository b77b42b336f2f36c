"""Draw the figures of the docs, their evidence included: `python docs/figures/draw.py tracing docs/figures`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebinding.cli.options import check_number, check_output_folder
from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import QK, K, Q, every_pair
from rebinding.experiments.binding.directions import measure_directions
from rebinding.experiments.binding.measure import run_binding
from rebinding.experiments.binding.summary import per_example
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.experiments.tracing.maps import trace_design
from rebinding.experiments.tracing.measure import diagnose
from rebinding.models import load
from rebinding.planted import ARCHITECTURES, build
from rebinding.report.figures.binding import dot
from rebinding.report.figures.diagnostic import readout_figure
from rebinding.report.figures.figure import DPI, LETTERING, OKABE_ITO, over_prompts
from rebinding.report.figures.tracing import PANELS, PanelName, combined_map, mode_maps
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import DESIGNS, ModeName, design, mode_name
from rebinding.task.prompts import Encoder

MECHANISMS = ("recency", "pointer")
"""The planted models of the figure on key dominance."""
BLOCK = 36
"""Ids over which the counterbalanced design with three boxes is balanced."""
DIRECTIONS = 10_000
"""The first id of the prompts that directions are measured on."""


COLOURS = {"published": OKABE_ITO["orange"], "counterbalanced": OKABE_ITO["blue"]}
"""The designs of the figure on key dominance."""
CONDITIONS = {"q": "Q", "k_both": "K", "qk": "Q+K"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the pictures, write them, and print where."""
    parser = argparse.ArgumentParser(description="draw the figures of the docs")
    parser.add_argument(
        "what", choices=FIGURES, help="section 3 on a model, or how a preference imitates key dominance"
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--model", default="planted:pointer", metavar="NAME", help="tracing: which model")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama", help="key-dominance: which family")
    parser.add_argument("--samples", type=int, metavar="N", help=f"prompts (20 to trace, {BLOCK} for key-dominance)")
    parser.add_argument("--design", choices=DESIGNS, default="published", help="tracing: which stories")
    parser.add_argument("--mode", action="append", default=[], metavar="PANEL=MODE", help="another mode for a panel")
    options = parser.parse_args(arguments)
    try:
        check_number("--samples", options.samples, minimum=1, maximum=MOST_PROMPTS)
        check_output_folder("the folder", options.folder)
        figures = FIGURES[options.what](options)
    except ValueError as error:
        sys.exit(f"{parser.prog}: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = options.folder / f"{name}.png"
        figure.savefig(path, dpi=DPI, bbox_inches="tight")
        print(path)


def tracing(options: argparse.Namespace) -> dict[str, Figure]:
    """The figures of section 3 for one model."""
    modes = panel_modes(options.mode)
    loaded_model = load(options.model)
    surgeon, encoder = loaded_model.surgeon(), loaded_model.encoder()
    plan, n = design(options.design, tokenizer=loaded_model.tokenizer), options.samples or 20
    maps = {panel: trace_design(surgeon, encoder, plan, mode=mode, n=n) for panel, mode in modes.items()}
    return {
        "tracing-combined": combined_map(maps),
        "tracing-modes": mode_maps(maps),
        "tracing-readout": readout_figure(diagnose(surgeon, encoder, plan, ids=range(n))),
    }


def panel_modes(choices: Sequence[str]) -> Mapping[PanelName, ModeName]:
    """The mode of every panel: ours, or that of a choice PANEL=MODE."""
    chosen: dict[str, str] = {}
    for choice in choices:
        panel, equals, mode = choice.partition("=")
        if not equals or panel not in PANELS:
            raise ValueError(f"--mode {choice}: give PANEL=MODE, with one of the panels {', '.join(PANELS)}")
        chosen[panel] = mode
    return {panel: mode_name(chosen.get(panel, settings.mode)) for panel, settings in PANELS.items()}


def key_dominance(options: argparse.Namespace) -> dict[str, Figure]:
    """Two mechanisms under two designs."""
    n = options.samples or BLOCK
    evidence = {
        (mechanism, name): planted_evidence(mechanism, name, n=n, architecture=options.architecture)
        for mechanism in MECHANISMS
        for name in COLOURS
    }
    return {"key-dominance": key_dominance_figure(evidence)}


def planted_evidence(mechanism: str, design_name: str, *, n: int, architecture: str = "llama") -> Evidence:
    """Q, K and Q+K on the heads that a plant calls group B, as published or over all ordered pairs of slots."""
    plant = build(mechanism, architecture)
    surgeon, encoder = TorchSurgeon(plant.model, derive(plant.model)), Encoder(plant.tokenizer)
    heads = [(head.layer, head.head) for head in plant.circuit if head.group == "B"]
    balanced = design_name == "counterbalanced"
    evaluation_stories = design("counterbalanced", split="evaluation") if balanced else design("published")
    direction_stories = design("counterbalanced", split="directions") if balanced else design("published")
    numbers = range(DIRECTIONS, DIRECTIONS + n)
    prompts = {
        slot: encoder.encode(direction_stories.direction(number, slot) for number in numbers) for slot in range(3)
    }
    return run_binding(
        surgeon,
        encoder.encode(evaluation_stories.prompt(number) for number in range(n)),
        measure_directions(surgeon, prompts, heads),
        heads,
        ids=range(n),
        token=encoder.answer_token,
        pairs=every_pair(3) if balanced else ((1, 0),),
        conditions=(Q, K, QK),
        scope="group" if not balanced else "head",
    )


@mpl.rc_context(LETTERING)
def key_dominance_figure(evidence: Mapping[tuple[str, str], Evidence]) -> Figure:
    """A row for every mechanism (keys: mechanism, design): both designs beside each other, and every pair of slots."""
    mechanisms = list(dict.fromkeys(mechanism for mechanism, _ in evidence))
    figure = Figure(figsize=(8, 2.6 * len(mechanisms)), layout="constrained")
    rows = figure.subplots(len(mechanisms), 2, squeeze=False, width_ratios=(3, 4))
    for (left, right), mechanism in zip(rows, mechanisms, strict=True):
        for place, (stories, colour) in enumerate(COLOURS.items()):
            examples = per_example(evidence[mechanism, stories])
            for line, condition in enumerate(CONDITIONS):
                of_condition = examples[examples["condition"] == condition]
                dot(left, of_condition, "dR", line + 0.2 * (place - 0.5), colour, label=None if line else stories)
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
        of_pair = keys[(keys["i"] == i) & (keys["j"] == j)]
        estimate = over_prompts(of_pair, "dR")
        colour = COLOURS["published" if (i, j) == (1, 0) else "counterbalanced"]
        axes.errorbar(
            place,
            estimate.mean,
            [[estimate.mean - estimate.low], [estimate.high - estimate.mean]],
            fmt="o",
            color=colour,
        )
    axes.axhline(0, color=OKABE_ITO["black"], linewidth=0.8)
    axes.set_xticks(range(len(pairs)), [f"{i}→{j}" for i, j in pairs])


FIGURES: Mapping[str, Callable[[argparse.Namespace], dict[str, Figure]]] = MappingProxyType(
    {"tracing": tracing, "key-dominance": key_dominance}
)

if __name__ == "__main__":
    main()
