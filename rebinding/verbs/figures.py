"""`python -m rebinding figures`: make the evidence of the docs' figures, and draw them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.evidence.store import Store, default_root
from rebinding.experiments.binding.cases import every_pair
from rebinding.experiments.binding.conditions import QK, K, Q
from rebinding.experiments.binding.directions import measure_directions
from rebinding.experiments.binding.shifts import run_binding
from rebinding.experiments.tracing.diagnostic import diagnose
from rebinding.experiments.tracing.modes import trace_design
from rebinding.experiments.tracing.panels import PANELS, PanelName, panel_mode
from rebinding.planted import ARCHITECTURES, build
from rebinding.report.figures.key_dominance import COLOURS, key_dominance_figure
from rebinding.report.figures.style import DPI
from rebinding.report.figures.tracing import combined_map, mode_maps, readout_figure
from rebinding.study.bench import MOST_PROMPTS
from rebinding.subjects import load
from rebinding.surgery import TorchSurgeon, derive
from rebinding.verbs.checks import check_number, check_output_folder
from rebinding.world.designs import DESIGNS, ModeName, design
from rebinding.world.prompts import Encoder

MECHANISMS = ("recency", "pointer")
BLOCK = 36
"""Ids over which the counterbalanced design with three boxes is balanced."""
DIRECTIONS = 10_000
"""The first id of the prompts that directions are measured on."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=DRAWN, help="section 3 on a model, or how a preference imitates key dominance")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--model", default="planted:pointer", metavar="NAME", help="tracing: which model")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama", help="key-dominance: which family")
    parser.add_argument("--samples", type=int, metavar="N", help=f"prompts (20 to trace, {BLOCK} for key-dominance)")
    parser.add_argument("--design", choices=DESIGNS, default="published", help="tracing: which stories")
    parser.add_argument("--mode", action="append", default=[], metavar="PANEL=MODE", help="another mode for a panel")
    parser.add_argument("--store", type=Path, default=default_root(), metavar="DIR")


def run(options: argparse.Namespace) -> int:
    """Write the pictures, and say where."""
    check_number("--samples", options.samples, least=1, most=MOST_PROMPTS)
    check_output_folder("the folder", options.folder)
    check_output_folder("--store", options.store)
    figures = DRAWN[options.what](options)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = options.folder / f"{name}.png"
        figure.savefig(path, dpi=DPI, bbox_inches="tight")
        print(path)
    return 0


def tracing(options: argparse.Namespace) -> dict[str, Figure]:
    """The figures of section 3 for one model."""
    modes = panel_modes(options.mode)
    subject = load(options.model)
    surgeon, encoder = subject.surgeon(), subject.encoder()
    plan, n = design(options.design, tokenizer=subject.tokenizer), options.samples or 20
    shelf = Store(options.store).shelf(subject=subject.fingerprint, dtype=subject.dtype)
    maps = {panel: trace_design(surgeon, encoder, plan, mode=mode, n=n, shelf=shelf) for panel, mode in modes.items()}
    return {
        "tracing-combined": combined_map(maps),
        "tracing-modes": mode_maps(maps),
        "tracing-readout": readout_figure(diagnose(surgeon, encoder, plan, ids=range(n), shelf=shelf)),
    }


def panel_modes(choices: Sequence[str]) -> Mapping[PanelName, ModeName]:
    """The mode of every panel: ours, or that of a choice PANEL=MODE."""
    chosen: dict[str, str] = {}
    for choice in choices:
        panel, equals, mode = choice.partition("=")
        if not equals or panel not in PANELS:
            raise ValueError(f"--mode {choice}: give PANEL=MODE, with one of the panels {', '.join(PANELS)}")
        chosen[panel] = mode
    return {panel: panel_mode(panel, chosen.get(panel)) for panel in PANELS}


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
    heads = [(one.layer, one.head) for one in plant.circuit if one.group == "B"]
    balanced = design_name == "counterbalanced"
    shown = design("counterbalanced", split="evaluation") if balanced else design("published")
    asked = design("counterbalanced", split="directions") if balanced else design("published")
    numbers = range(DIRECTIONS, DIRECTIONS + n)
    prompts = {slot: encoder.encode(asked.direction(number, slot) for number in numbers) for slot in range(3)}
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


DRAWN: Mapping[str, Callable[[argparse.Namespace], dict[str, Figure]]] = MappingProxyType(
    {"tracing": tracing, "key-dominance": key_dominance}
)
