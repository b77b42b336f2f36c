"""`rebinding compare FIRST SECOND`: what changed from one report to a later one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rebinding.cli.options import HELP
from rebinding.report.compare import ReportComparison
from rebinding.report.folder import read


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="FIRST", help="a folder written by --report")
    parser.add_argument(
        "second", type=Path, metavar="SECOND", help="a later one; the exit code is 1 if a verdict changed"
    )
    parser.add_argument("--json", action="store_true", help=HELP["--json"])


def run(options: argparse.Namespace) -> int:
    comparison = ReportComparison(read(options.first), read(options.second))
    print(json.dumps(comparison.plain(), indent=1) if options.json else "\n".join(comparison.lines()))
    return int(bool(comparison.verdicts))
