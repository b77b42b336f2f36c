"""`rebinding compare FIRST SECOND`: what changed from one report to a later one."""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.report.compare import Comparison
from rebinding.report.folder import read


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="FIRST", help="a folder written by --report")
    parser.add_argument(
        "second", type=Path, metavar="SECOND", help="a later one; the exit code is 1 if a verdict changed"
    )


def run(options: argparse.Namespace) -> int:
    comparison = Comparison(read(options.first), read(options.second))
    print("\n".join(comparison.lines()))
    return int(bool(comparison.verdicts))
