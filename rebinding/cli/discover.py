"""`rebinding discover`: find a model's circuit by path patching, print it by group, save it, draw it.

By the paper's five stages, or, with `--positions all`, by position-free discovery.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from rebinding.cli.options import (
    HELP,
    check_figure_file,
    check_input_file,
    check_number,
    check_output_file,
    check_output_folder,
)
from rebinding.engines.choice import Choice
from rebinding.evidence.shards import put_in_place
from rebinding.evidence.store import Store, default_root
from rebinding.experiments.path_patching import Frozen
from rebinding.experiments.paths.request import PAPER, PAPER_LITERAL, Paths, PathSettings, Stage
from rebinding.experiments.paths.summary import MIN_EFFECT, Discovery, Scale, Selection, discover_by
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.experiments.search import graph as graphs
from rebinding.experiments.search.measure import search_on
from rebinding.experiments.search.request import NOISE, Screen, SearchSettings
from rebinding.experiments.search.request import PROMPTS as BLOCK
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import save, to_json
from rebinding.planted.plant import MAX_BOXES as MOST_PLANTED
from rebinding.study.engine import Engine, Session
from rebinding.study.model_spec import parse_model
from rebinding.study.options import MODEL, declare, design_help
from rebinding.surgery import TorchSurgeon
from rebinding.surgery.sites import Scope
from rebinding.task.boxes import MAX_BOXES, MIN_BOXES
from rebinding.task.designs import NOISE_KINDS

OF_SEARCH: Mapping[str, Any] = MappingProxyType(
    {
        "share": SearchSettings().share,
        "min_attention": SearchSettings().min_attention,
        "screen": SearchSettings().screen,
        "mlps": False,
        "minutes": None,
        "graph": None,
        "compare": [],
    }
)
"""The defaults of options that only this search has."""


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this search has."""
    defaults = SearchSettings()
    group = parser.add_argument_group("position-free discovery (--positions all)")
    group.add_argument(
        "--share",
        type=float,
        default=defaults.share,
        metavar="X",
        help=f"select effects of at least this share of the total loss (default {defaults.share}; e.g. --share 0.05)",
    )
    group.add_argument(
        "--min-attention",
        type=float,
        default=defaults.min_attention,
        metavar="X",
        help="skip tokens that no receiver gives this much attention, in any prompt of a block"
        f" (default {defaults.min_attention}; 0 skips none)",
    )
    group.add_argument(
        "--screen",
        choices=get_args(Screen),
        default=defaults.screen,
        help="first-order: skip rows whose effect is small by a first-order estimate, and later senders with almost no"
        " effect in the first block; edge-attribution and its integrated form: by an estimate of the whole edge; none:"
        f" run them. Exact with --screen none --min-attention 0 (default {defaults.screen})",
    )
    group.add_argument(
        "--mlps", action="store_true", help="search MLPs as well as heads; then an edge leads through no other MLP"
    )
    group.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="stop after the block in which this time ends (default: no limit; e.g. --minutes 30)",
    )
    group.add_argument(
        "--graph",
        type=Path,
        metavar="FILE",
        help="write nodes and edges, as JSON or as .graphml (default: not written)",
    )
    group.add_argument(
        "--compare",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="compare with a graph (JSON) of this model that was found on other prompts; repeatable (default: none)",
    )


def _check_search(options: argparse.Namespace) -> None:
    """Check the options before a model is loaded."""
    _search_settings(options)  # raises if out of range
    check_number("--minutes", options.minutes)
    check_output_file("--graph", options.graph)
    for path in options.compare:
        check_input_file("--compare", path)


def _search_settings(options: argparse.Namespace) -> SearchSettings:
    return SearchSettings(
        options.share,
        min_attention=options.min_attention,
        screen=options.screen,
        block=options.block,
        mlps=options.mlps,
    )


def _run_search(options: argparse.Namespace, bench: Workbench) -> int:
    """Search, print the graph, and write the requested files."""
    loaded_model = bench.loaded_model
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise ValueError(f"{loaded_model.name} runs on a server; --positions all needs a model on this machine")
    show = partial(print, file=sys.stderr if options.json else None)
    compared = [(path, graphs.load(path, owner_of(loaded_model))) for path in options.compare]
    stories = bench.prompts.design("counterbalanced", boxes=options.boxes)
    ids = range(options.skip_prompts, options.skip_prompts + options.samples)
    settings = _search_settings(options)
    deadline = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
    prompts = bench.prompts.draw(stories, ids, ("noise", NOISE))
    graph = search_on(bench, prompts, settings, deadline, show).graph(
        {"design": stories.name, "noise": NOISE, "skip_prompts": options.skip_prompts}
    )
    if options.json:
        print(graphs.to_json(graph, owner_of(loaded_model)), end="")
    else:
        print("\n".join(graph.lines()))
    for path, peer in compared:
        show("\n".join(graphs.compare(graph, peer, path.name)))
    if not graph.settings["finished"]:
        show(f"the {options.minutes:g} minutes are up: this is a part; run the same command again to continue")
    if options.circuit:
        put_in_place({options.circuit: lambda path: save(graph.circuit(), owner_of(loaded_model), path)})
    if options.graph:
        graphs.save(graph, owner_of(loaded_model), options.graph)
    if options.figure:
        from rebinding.report.figures.circuits import draw_graph

        draw_graph(graph, loaded_model.anatomy.n_layers, loaded_model.name).savefig(options.figure)
    return 0


PROMPTS = 100
OF_STAGES: Mapping[str, Any] = MappingProxyType(
    {
        "design": "partner_second",
        "noise": "independent",
        "stages": "paper",
        "top_k": None,
        "score": "logit",
        "select": "sure",
        "min_effect": None,
        "frozen": "all",
        "scope": "head",
    }
)
"""The defaults of options that only the stages have."""
STAGES = {"paper": PAPER, "paper-literal": PAPER_LITERAL}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME", help=MODEL)
    parser.add_argument(
        "--positions",
        choices=("roles", "all"),
        default="roles",
        help="roles: the paper's five stages, which search at the tokens of their roles; all: search every head at"
        " every token, backwards from the logits (default roles)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"prompts (default {PROMPTS}, as in the paper; with --positions all {BLOCK}, a balanced block)",
    )
    declare(parser.add_argument, "--skip-prompts")
    parser.add_argument("--boxes", type=int, default=3, metavar="N", help=HELP["--boxes"])
    parser.add_argument("--block", type=int, default=16, metavar="N", help="prompts computed at once (default 16)")
    declare(parser.add_argument, "--dtype", "--device")
    declare(parser.add_argument, "--store", type=Path)
    declare(parser.add_argument, "--no-store")
    # not dest `save`: nnsight gives every object a method of that name, and argparse then sees the default as set
    parser.add_argument(
        "--save", dest="circuit", type=Path, metavar="FILE", help="write the circuit as JSON (default: not written)"
    )
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw groups at their tokens over layers (default: not drawn)"
    )
    parser.add_argument("--json", action="store_true", help="print the circuit (--positions all: the graph) as JSON")
    declare(parser.add_argument, "--engine", "--address", "--gpus-per-model", "--workers")
    _add_stage_options(parser.add_argument_group("the five stages (--positions roles)"))
    _add_search_options(parser)


def _add_stage_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that only the stages have."""
    declare(group.add_argument, "--design", help=design_help(OF_STAGES["design"]))
    group.add_argument("--noise", choices=NOISE_KINDS, help="how noise prompts differ (default independent)")
    group.add_argument(
        "--stages",
        choices=STAGES,
        help="paper-literal: D acts on C's query, not on its keys and values (default paper)",
    )
    group.add_argument(
        "--top-k",
        metavar="A,B,C,D,E",
        help="heads that each stage selects at most (default: the paper's 50,50,25,10,10)",
    )
    group.add_argument(
        "--score",
        choices=get_args(Scale),
        help="scale of a head's score: the answer's logit or probability (default logit)",
    )
    group.add_argument(
        "--select",
        choices=get_args(Selection),
        help="sure: heads with a significant effect; negative: any drop; published: the k lowest (default sure)",
    )
    effects = ", ".join(f"{value} with --score {scale}" for scale, value in MIN_EFFECT.items())
    group.add_argument("--min-effect", type=float, metavar="X", help=f"select scores below -X only (default {effects})")
    group.add_argument(
        "--frozen",
        choices=get_args(Frozen),
        help="other heads that keep their clean output while one is patched (default all)",
    )
    group.add_argument(
        "--scope",
        choices=get_args(Scope),
        help="whether a patched key or value acts on one head or its KV group (default head)",
    )
    group.set_defaults(**OF_STAGES)


def run(options: argparse.Namespace) -> int:
    if options.samples is None:
        options.samples = BLOCK if options.positions == "all" else PROMPTS
    if options.positions != "all" and (names := changed_options(options, OF_SEARCH)):
        raise ValueError(f"{names}: the stages have no such option; add --positions all, or leave it out")
    _check(options)
    options.dtype = options.dtype or parse_model(options.model).dtype
    stages = with_top_k(STAGES[options.stages], options.top_k)
    choice = Choice(options.engine, options.address, options.gpus_per_model, options.workers)
    engine, store = choice.create(), None if options.no_store else Store(options.store or default_root())
    if options.positions == "all":
        return _search_all_positions(options, engine, store)
    with closing(engine):
        session, discovery = engine.finish(lambda: discover_circuit(options, stages, engine, store))
    loaded_model = session.loaded_model
    if options.json:
        print(to_json(discovery.circuit, owner_of(loaded_model)), end="")
    else:
        empty = [stage for stage in stages if stage.group not in discovery.circuit.groups]
        print("\n".join(discovery.circuit.lines()))
        print("".join(f"{stage.group}  at {stage.sender:18} (none)\n" for stage in empty), end="")
    if options.circuit:
        put_in_place({options.circuit: lambda path: save(discovery.circuit, owner_of(loaded_model), path)})
    if options.figure:
        from rebinding.report.figures.circuits import draw_circuit

        draw_circuit(discovery.circuit, loaded_model.anatomy.n_layers, loaded_model.name).savefig(options.figure)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the options before anything is loaded."""
    check_number("--samples", options.samples, minimum=1, maximum=MOST_PROMPTS)
    check_number("--skip-prompts", options.skip_prompts)
    check_number("--block", options.block, minimum=1)
    check_number("--min-effect", options.min_effect)
    check_number("--boxes", options.boxes, minimum=MIN_BOXES, maximum=MAX_BOXES)
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
    if options.positions == "all":
        _check_search(options)


def discover_circuit(
    options: argparse.Namespace, stages: tuple[Stage, ...], engine: Engine, store: Store | None
) -> tuple[Session, Discovery]:
    """The circuit that the stages find; each stage is requested from the engine when the one before is done."""
    loaded_model = engine.loaded_model(options.model, dtype=options.dtype, device=options.device, store=store)
    session = engine.session(loaded_model, store)
    path_settings = PathSettings(options.frozen, options.scope, options.block)
    ids = range(options.skip_prompts, options.skip_prompts + options.samples)
    prompts = session.prompts
    pairs = prompts.draw(prompts.design(options.design, boxes=options.boxes), ids, ("noise", options.noise))
    origin = {
        "prompts": len(ids),
        "design": options.design,
        "noise": options.noise,
        "skip_prompts": options.skip_prompts,
    }
    return session, discover_by(
        lambda stage, receivers: session.source.get(Paths(pairs, stage, tuple(sorted(receivers)), path_settings)),
        stages,
        scale=options.score,
        rule=options.select,
        min_effect=options.min_effect,
        extra_settings={**asdict(path_settings), **origin},
    )


def _search_all_positions(options: argparse.Namespace, engine: Engine, store: Store | None) -> int:
    """Run position-free discovery, in one process: it decides after every block what to search next."""
    if not engine.is_local:
        raise ValueError("--positions all is a search in one process; leave --engine out, or --positions all")
    if names := changed_options(options, OF_STAGES):
        raise ValueError(f"--positions all has no stages: leave {names} out, or --positions all")
    loaded_model = load(options.model, dtype=options.dtype, device=options.device)
    return _run_search(options, Workbench(loaded_model, store))


def changed_options(options: argparse.Namespace, defaults: Mapping[str, Any]) -> str:
    """The names of options that differ from these defaults, with commas."""
    return ", ".join(
        f"--{name.replace('_', '-')}" for name, default in defaults.items() if getattr(options, name) != default
    )


def with_top_k(stages: tuple[Stage, ...], value: str | None) -> tuple[Stage, ...]:
    """The stages with the numbers of heads from `--top-k`."""
    if value is None:
        return stages
    try:
        counts = [int(part) for part in value.split(",")]
    except ValueError:
        counts = []
    if len(counts) != len(stages) or min(counts) < 1:
        raise ValueError(f"--top-k {value}: give {len(stages)} positive numbers, one a stage, such as 50,50,25,10,10")
    return tuple(replace(stage, top_k=count) for stage, count in zip(stages, counts, strict=True))
