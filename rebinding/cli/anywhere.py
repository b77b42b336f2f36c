"""`python -m rebinding discover --anywhere`: position-free discovery."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rebinding.cli.checks import check_input_file, check_number, check_output_file
from rebinding.evidence.shards import put_in_place
from rebinding.experiments.search.measure import search_on
from rebinding.experiments.search.request import NOISE, Settings
from rebinding.experiments.workbench import Workbench
from rebinding.paper import graph as graphs
from rebinding.paper.circuit import save
from rebinding.study.model_under_test import owner_of
from rebinding.surgery import TorchSurgeon

OF_SEARCH: Mapping[str, Any] = MappingProxyType(
    {"share": Settings().share, "listens": Settings().listens, "minutes": None, "graph": None, "beside": []}
)
"""The defaults of options that only this search has."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this search has."""
    plain = Settings()
    group = parser.add_argument_group("position-free discovery")
    group.add_argument(
        "--anywhere", action="store_true", help="search every head at every token, backwards from the logits"
    )
    group.add_argument(
        "--share",
        type=float,
        default=plain.share,
        metavar="X",
        help=f"keep effects of at least this share of the total (default {plain.share})",
    )
    group.add_argument(
        "--listens",
        type=float,
        default=plain.listens,
        metavar="X",
        help=f"skip tokens that get less attention than this everywhere (default {plain.listens}; 0: skip none)",
    )
    group.add_argument("--minutes", type=float, metavar="M", help="stop after the block in which this time ends")
    group.add_argument("--graph", type=Path, metavar="FILE", help="write nodes and edges, as JSON or as .graphml")
    group.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="compare with another graph of this model (JSON), found on other prompts",
    )


def check(options: argparse.Namespace) -> None:
    """Check the options before a model is loaded."""
    Settings(options.share, listens=options.listens, block=options.block)  # raises if out of range
    check_number("--minutes", options.minutes)
    check_output_file("--graph", options.graph)
    for path in options.beside:
        check_input_file("--beside", path)


def run(options: argparse.Namespace, bench: Workbench) -> int:
    """Search, print the graph, and write the requested files."""
    loaded_model = bench.loaded_model
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise ValueError(f"{loaded_model.name} runs on a server; --anywhere needs a model on this machine")
    compared = [(path, graphs.load(path, owner_of(loaded_model))) for path in options.beside]
    stories = bench.prompts.design("counterbalanced", boxes=options.boxes)
    ids = range(options.first_id, options.first_id + options.samples)
    settings = Settings(options.share, listens=options.listens, block=options.block)
    deadline = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
    prompts = bench.prompts.draw(stories, ids, ("noise", NOISE))
    graph = search_on(bench, prompts, settings, deadline, print).graph(
        {"design": stories.name, "noise": NOISE, "first_id": options.first_id}
    )
    print("\n".join(graph.lines()))
    for path, peer in compared:
        print("\n".join(graphs.compare(graph, peer, path.name)))
    if not graph.settings["finished"]:
        print(f"the {options.minutes:g} minutes are up: this is a part; run the same command again to continue")
    if options.circuit:
        put_in_place({options.circuit: lambda path: save(graph.circuit(), owner_of(loaded_model), path)})
    if options.graph:
        graphs.save(graph, owner_of(loaded_model), options.graph)
    if options.figure:
        from rebinding.experiments.search.figures import draw_graph

        draw_graph(graph, loaded_model.anatomy.n_layers, loaded_model.name).savefig(options.figure)
    return 0
