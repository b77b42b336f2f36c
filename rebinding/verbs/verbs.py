"""The verbs of `python -m rebinding`.

A verb is a module with `arguments(parser)` and `run(options)`; it is imported only when it is called, so a verb costs
nothing to the others. To add one, add its line to `VERBS`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rebinding.verbs.terminal import readable


@dataclass(frozen=True)
class Verb:
    """Where a verb lives, and what it is for, in one line."""

    module: str
    says: str


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "discover": Verb("rebinding.verbs.discover", "find a model's circuit by path patching, print it, save it"),
        "planted": Verb("rebinding.verbs.planted", "show a planted mechanism: its circuit and its truth table"),
        "prompt": Verb("rebinding.verbs.prompt", "show a pair of prompts with their roles under a model's tokenizer"),
        "report": Verb("rebinding.verbs.report", "make a report's page again from its evidence; needs no model"),
        "store": Verb("rebinding.verbs.store", "list or clear the evidence kept on disk"),
        "train": Verb("rebinding.verbs.train", "train an adapter with which a language model does the task"),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Bad input (any `ValueError`), a disk that refuses, and Ctrl-C end with a message and status 2,
    without a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in VERBS:
        return _explain(given)
    prog = f"python -m rebinding {given[0]}"
    try:
        return _run(prog, VERBS[given[0]], given[1:])
    except ValueError as error:
        why = str(error)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        why = f"{where}{error.strerror or error}"
    except KeyboardInterrupt:
        why = "interrupted; what was finished is in the store, if there is one: the same command goes on from there"
    print(readable(f"{prog}: {why}"), file=sys.stderr)
    return 2


def _run(prog: str, verb: Verb, given: Sequence[str]) -> int:
    module = importlib.import_module(verb.module)
    parser = argparse.ArgumentParser(prog=prog, description=verb.says)
    module.arguments(parser)
    return int(module.run(parser.parse_args(given)))


def _explain(given: Sequence[str]) -> int:
    wants_help = given[:1] in (["-h"], ["--help"])
    lines = ["usage: python -m rebinding VERB [options]; VERB --help tells a verb's options", ""]
    lines += [f"  {name:10} {verb.says}" for name, verb in VERBS.items()]
    if given and not wants_help:
        near = difflib.get_close_matches(given[0], VERBS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        lines.insert(0, readable(f"there is no verb {given[0]!r}{hint}"))
    print("\n".join(lines), file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2
