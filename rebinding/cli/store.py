"""`rebinding store`: list and clear the evidence on disk."""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path

from rebinding.cli.options import HELP, check_output_folder
from rebinding.evidence.store import Entry, Store, default_root
from rebinding.study.options import declare


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("list", "clear"), nargs="?", default="list", help="what to do (default list)"
    )
    declare(parser.add_argument, "--store", type=Path)
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help="only the shards of this experiment (default: all; e.g. --experiment paths)",
    )
    parser.add_argument("--json", action="store_true", help=HELP["--json"])


def run(options: argparse.Namespace) -> int:
    if options.store is not None and not os.path.isdir(options.store):
        raise ValueError(f"--store {options.store}: there is no such folder (seen from {os.getcwd()})")
    store = Store(options.store or default_root())
    check_output_folder("REBINDING_STORE", store.root)
    check_experiment(store, options.experiment)
    if options.action == "clear":
        count = store.clear(options.experiment)
        removed = {"root": str(store.root), "removed": count}
        print(json.dumps(removed) if options.json else f"{count} shards removed from {store.root}")
        return 0
    by_experiment: dict[str, list[Entry]] = defaultdict(list)
    for entry in store.entries():
        if options.experiment in (None, entry.experiment):
            by_experiment[entry.experiment].append(entry)
    if options.json:
        sizes = {
            name: {"shards": len(entries), "bytes": sum(entry.bytes for entry in entries)}
            for name, entries in by_experiment.items()
        }
        print(json.dumps({"root": str(store.root), "experiments": sizes}, indent=1))
        return 0
    print(f"{store.root}: {sum(map(len, by_experiment.values()))} shards")
    for name, entries in by_experiment.items():
        print(f"  {name:24} {len(entries):6} shards {sum(entry.bytes for entry in entries) / 1e6:10.2f} MB")
    return 0


def check_experiment(store: Store, name: str | None) -> None:
    """Refuse an experiment that is not in a store with other experiments."""
    experiments = dict.fromkeys(entry.experiment for entry in store.entries())
    if name is not None and experiments and name not in experiments:
        raise ValueError(f"--experiment {name}: {store.root} holds none of it; it has {', '.join(experiments)}")
