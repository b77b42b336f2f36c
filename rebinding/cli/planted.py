"""`rebinding planted pointer@gemma2`: a planted mechanism's circuit by group, and its truth table."""

from __future__ import annotations

import argparse
import json

from rebinding.cli.options import HELP
from rebinding.models import origin
from rebinding.planted.show import plain, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MECHANISM[@ARCHITECTURE]", help="e.g. pointer or recency@gemma3")
    parser.add_argument("--json", action="store_true", help=HELP["--json"])


def run(options: argparse.Namespace) -> int:
    origin(f"planted:{options.name.removeprefix('planted:')}")  # raises for an unknown name, with suggestions
    print(json.dumps(plain(options.name), indent=1) if options.json else table(options.name))
    return 0
