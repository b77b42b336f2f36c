"""`rebinding discover --positions all`: position-free discovery."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rebinding.cli.checks import check_input_file, check_number, check_output_file
from rebinding.evidence.shards import put_in_place
from rebinding.experiments.search.measure import search_on
from rebinding.experiments.search.request import NOISE, Settings
from rebinding.experiments.workbench import Workbench
from rebinding.models.loaded_model import owner_of
from rebinding.paper import graph as graphs
from rebinding.paper.circuit import save
from rebinding.surgery import TorchSurgeon

OF_SEARCH: Mapping[str, Any] = MappingProxyType(
    {
        "share": Settings().share,
        "min_attention": Settings().min_attention,
        "minutes": None,
        "graph": None,
        "compare": [],
    }
)
"""The defaults of options that only this search has."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this search has."""
    defaults = Settings()
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


def check(options: argparse.Namespace) -> None:
    """Check the options before a model is loaded."""
    Settings(options.share, min_attention=options.min_attention, block=options.block)  # raises if out of range
    check_number("--minutes", options.minutes)
    check_output_file("--graph", options.graph)
    for path in options.compare:
        check_input_file("--compare", path)


def run(options: argparse.Namespace, bench: Workbench) -> int:
    """Search, print the graph, and write the requested files."""
    loaded_model = bench.loaded_model
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise ValueError(f"{loaded_model.name} runs on a server; --positions all needs a model on this machine")
    show = partial(print, file=sys.stderr if options.json else None)
    compared = [(path, graphs.load(path, owner_of(loaded_model))) for path in options.compare]
    stories = bench.prompts.design("counterbalanced", boxes=options.boxes)
    ids = range(options.skip_prompts, options.skip_prompts + options.samples)
    settings = Settings(options.share, min_attention=options.min_attention, block=options.block)
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
