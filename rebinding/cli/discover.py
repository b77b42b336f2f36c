"""`python -m rebinding discover`: find a model's circuit by path patching, print it by group, save it, draw it.

By the paper's five stages, or, with `--anywhere`, by position-free discovery (`rebinding.cli.anywhere`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from rebinding.cli import anywhere
from rebinding.cli.checks import check_figure_file, check_number, check_output_file, check_output_folder
from rebinding.engines import choice as engines
from rebinding.evidence.shards import put_in_place
from rebinding.evidence.store import Store, default_root
from rebinding.experiments.paths.discovery import Discovery, discover_by
from rebinding.experiments.paths.request import PAPER, PAPER_LITERAL, Frozen, Paths, PathSettings, Stage
from rebinding.experiments.paths.summary import LEAST, Scale, Selection
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.experiments.search.request import PROMPTS as BLOCK
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.devices import DTYPES
from rebinding.paper.circuit import save
from rebinding.planted.plant import MAX_BOXES as MOST_PLANTED
from rebinding.study.engine import Engine, InProcessEngine, Session
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import owner_of
from rebinding.surgery.sites import Scope
from rebinding.task.boxes import MAX_BOXES, MIN_BOXES
from rebinding.task.designs import DESIGNS, NOISE_KINDS

PROMPTS = 100
OF_STAGES: Mapping[str, Any] = MappingProxyType(
    {
        "design": "partner_second",
        "noise": "independent",
        "stages": "paper",
        "keep": None,
        "score": "logit",
        "select": "sure",
        "least": None,
        "frozen": "all",
        "scope": "head",
    }
)
"""The defaults of options that only the stages have."""
STAGES = {"paper": PAPER, "paper-literal": PAPER_LITERAL}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="NAME", help="an alias, a Hub id, a folder, planted:MECHANISM"
    )
    parser.add_argument("--design", choices=DESIGNS)
    parser.add_argument("--noise", choices=NOISE_KINDS)
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="prompts (default 100, as in the paper; --anywhere: 36, a balanced block)",
    )
    parser.add_argument("--first-id", type=int, default=0, metavar="ID", help="the first prompt id")
    parser.add_argument("--boxes", type=int, default=3, metavar="N")
    parser.add_argument("--stages", choices=STAGES, help="paper-literal: D acts on C's query")
    parser.add_argument(
        "--keep", metavar="A,B,C,D,E", help="heads kept per stage (default: the paper's 50,50,25,10,10)"
    )
    parser.add_argument("--score", choices=get_args(Scale), help="what a head is scored by")
    parser.add_argument("--select", choices=get_args(Selection), help="which heads a stage keeps")
    least = ", ".join(f"{value} by {scale}" for scale, value in LEAST.items())
    parser.add_argument("--least", type=float, metavar="X", help=f"select scores below -X only (default {least})")
    parser.add_argument("--frozen", choices=get_args(Frozen))
    parser.add_argument("--scope", choices=get_args(Scope))
    parser.add_argument("--block", type=int, default=16, metavar="N", help="prompts computed at once")
    parser.add_argument("--dtype", choices=DTYPES, help="default: as on record, or as saved, as in `pytest claims`")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--store", type=Path, metavar="DIR", help="where finished blocks are kept (default .rebinding)")
    parser.add_argument("--no-store", action="store_true", help="keep nothing; an interrupted run starts again")
    # not dest `save`: nnsight gives every object a method of that name, and argparse then sees the default as set
    parser.add_argument("--save", dest="circuit", type=Path, metavar="FILE", help="write the circuit as JSON")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the groups at their tokens over layers")
    parser.set_defaults(**OF_STAGES)
    engines.arguments(parser.add_argument)
    anywhere.arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.samples is None:
        options.samples = BLOCK if options.anywhere else PROMPTS
    if not options.anywhere and (names := changed_options(options, anywhere.OF_SEARCH)):
        raise ValueError(f"{names}: the stages have no such option; add --anywhere, or leave it out")
    _check(options)
    options.dtype = options.dtype or parse_model(options.model).dtype
    stages = with_kept_heads(STAGES[options.stages], options.keep)
    choice = engines.Choice(options.engine, options.address, options.gpus_per_model, options.workers)
    engine, store = choice.create(), None if options.no_store else Store(options.store or default_root())
    if options.anywhere:
        return _anywhere(options, engine, store)
    with closing(engine):
        session, discovery = engine.finish(lambda: discover_circuit(options, stages, engine, store))
    loaded_model = session.loaded_model
    print("\n".join(discovery.circuit.lines()))
    for stage in stages:
        if stage.group not in discovery.circuit.groups:
            print(f"{stage.group}  at {stage.sender:18} (none)")
    if options.circuit:
        put_in_place({options.circuit: lambda path: save(discovery.circuit, owner_of(loaded_model), path)})
    if options.figure:
        from rebinding.experiments.circuit.figures import draw_circuit

        draw_circuit(discovery.circuit, loaded_model.anatomy.n_layers, loaded_model.name).savefig(options.figure)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the options before anything is loaded."""
    check_number("--samples", options.samples, least=1, most=MOST_PROMPTS)
    check_number("--first-id", options.first_id)
    check_number("--block", options.block, least=1)
    check_number("--least", options.least)
    check_number("--boxes", options.boxes, least=MIN_BOXES, most=MAX_BOXES)
    check_output_file("--save", options.circuit)
    check_figure_file("--figure", options.figure)
    if not options.no_store:
        check_output_folder("--store", options.store or default_root())
    plant = parse_model(options.model).plant
    if plant is not None and options.boxes > plant.boxes:
        raise ValueError(
            f"--boxes {options.boxes}: {plant.name} is made for at most {plant.boxes} boxes; give --model"
            f" {replace(plant, boxes=min(options.boxes, MOST_PLANTED)).name} for more, up to {MOST_PLANTED}"
        )
    if options.anywhere:
        anywhere.check(options)


def discover_circuit(
    options: argparse.Namespace, stages: tuple[Stage, ...], engine: Engine, store: Store | None
) -> tuple[Session, Discovery]:
    """The circuit that the stages find; each stage is requested from the engine when the one before is done."""
    loaded_model = engine.loaded_model(options.model, dtype=options.dtype, device=options.device, store=store)
    session = engine.session(loaded_model, store)
    path_settings = PathSettings(options.frozen, options.scope, options.block)
    ids = range(options.first_id, options.first_id + options.samples)
    prompts = session.prompts
    pairs = prompts.draw(prompts.design(options.design, boxes=options.boxes), ids, ("noise", options.noise))
    origin = {"prompts": len(ids), "design": options.design, "noise": options.noise, "first_id": options.first_id}
    return session, discover_by(
        lambda stage, receivers: session.source.get(Paths(pairs, stage, tuple(sorted(receivers)), path_settings)),
        stages,
        scale=options.score,
        rule=options.select,
        least=options.least,
        described={**asdict(path_settings), **origin},
    )


def _anywhere(options: argparse.Namespace, engine: Engine, store: Store | None) -> int:
    """Run position-free discovery, in one process: it decides after every block what to search next."""
    if not isinstance(engine, InProcessEngine):
        raise ValueError("--anywhere is a search in one process; leave --engine out, or --anywhere")
    if names := changed_options(options, OF_STAGES):
        raise ValueError(f"--anywhere has no stages: leave {names} out, or --anywhere")
    loaded_model = load(options.model, dtype=options.dtype, device=options.device)
    shelf = None if store is None else store.shelf(loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
    return anywhere.run(options, Workbench(loaded_model, shelf))


def changed_options(options: argparse.Namespace, defaults: Mapping[str, Any]) -> str:
    """The names of options that differ from these defaults, with commas."""
    return ", ".join(f"--{name}" for name, default in defaults.items() if getattr(options, name) != default)


def with_kept_heads(stages: tuple[Stage, ...], value: str | None) -> tuple[Stage, ...]:
    """The stages with the numbers of kept heads from `--keep`."""
    if value is None:
        return stages
    try:
        counts = [int(part) for part in value.split(",")]
    except ValueError:
        counts = []
    if len(counts) != len(stages) or min(counts) < 1:
        raise ValueError(f"--keep {value}: give {len(stages)} positive numbers, one a stage, such as 50,50,25,10,10")
    return tuple(replace(stage, keep=count) for stage, count in zip(stages, counts, strict=True))
