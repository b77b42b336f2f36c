"""The command `rebinding`, also as `python -m rebinding`.

A subcommand is a module with `arguments(parser)` and `run(options)`. It is imported only when it runs. With `PASSES_ON`
it gets the words that its parser does not know, as `options.rest`. To add one, add a line to `SUBCOMMANDS`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rebinding.cli.options import readable


@dataclass(frozen=True)
class Subcommand:
    """A module and a description in one line."""

    module: str
    description: str


SUBCOMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "judge": Subcommand("rebinding.cli.judge", "test the paper's claims on models: the headline claims, or all"),
        "certify": Subcommand(
            "rebinding.cli.certify", "check that edits of a model are exact, and save a certificate for reports"
        ),
        "compare": Subcommand("rebinding.cli.compare", "say what changed from one report to another"),
        "discover": Subcommand("rebinding.cli.discover", "find a model's circuit by path patching, print it, save it"),
        "new-suite": Subcommand("rebinding.cli.new_suite", "write a suite of one claim, to be changed into one's own"),
        "planted": Subcommand("rebinding.cli.planted", "show a planted mechanism: its circuit and its truth table"),
        "prompt": Subcommand(
            "rebinding.cli.prompt", "show a pair of prompts with their roles under a model's tokenizer"
        ),
        "report": Subcommand("rebinding.cli.report", "make a report's page again from its evidence; needs no model"),
        "sensitivity": Subcommand(
            "rebinding.cli.sensitivity", "say which conclusions on a circuit depend on ablation, metric and prompts"
        ),
        "store": Subcommand("rebinding.cli.store", "list or clear the evidence kept on disk"),
        "train": Subcommand("rebinding.cli.train", "train an adapter with which a language model does the task"),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Bad input (any `ValueError`), a full or read-only disk, and Ctrl-C print a message without a
    traceback and return 2."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] not in SUBCOMMANDS:
        return _explain(argv)
    prog = f"rebinding {argv[0]}"
    try:
        return int(_module(argv[0]).run(parse(argv[0], argv[1:])))
    except ValueError as error:
        why = str(error)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        why = f"{where}{error.strerror or error}"
    except KeyboardInterrupt:
        why = (
            "interrupted; finished evidence is in the store (unless --no-store). Run the same command again to continue"
        )
    print(readable(f"{prog}: {why}"), file=sys.stderr)
    return 2


def make_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a command's options."""
    description = SUBCOMMANDS[name].description
    parser = argparse.ArgumentParser(prog=f"rebinding {name}", description=description, allow_abbrev=False)
    _module(name).arguments(parser)
    return parser


def parse(name: str, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command; words that its parser does not know are `rest`, or refused."""
    parser = make_parser(name)
    options, rest = parser.parse_known_args(argv)
    if rest and not getattr(_module(name), "PASSES_ON", False):
        parser.error(f"unknown option or argument: {' '.join(rest)}")
    options.rest = rest
    return options


def _module(name: str) -> Any:
    subcommand = SUBCOMMANDS[name]
    return importlib.import_module(subcommand.module)


def _explain(argv: Sequence[str]) -> int:
    wants_help = argv[:1] in (["-h"], ["--help"])
    lines = ["usage: rebinding COMMAND [options]; COMMAND --help lists the options of a command", ""]
    lines += [f"  {name:10} {subcommand.description}" for name, subcommand in SUBCOMMANDS.items()]
    if argv and not wants_help:
        near = difflib.get_close_matches(argv[0], SUBCOMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        lines.insert(0, readable(f"unknown command {argv[0]!r}{hint}"))
    print("\n".join(lines), file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2
