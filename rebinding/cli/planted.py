"""`python -m rebinding planted pointer@gemma2`: a planted mechanism's circuit by group, and its truth table."""

from __future__ import annotations

import argparse

from rebinding.models import origin
from rebinding.planted.show import table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MECHANISM[@ARCHITECTURE]", help="e.g. pointer or recency@gemma3")


def run(options: argparse.Namespace) -> int:
    origin(f"planted:{options.name.removeprefix('planted:')}")  # raises for an unknown name, with suggestions
    print(table(options.name))
    return 0
