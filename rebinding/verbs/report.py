"""`python -m rebinding report FOLDER`: make the page of a report again, from what the folder holds."""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.report.page import render


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder made with `pytest claims --report DIR`")


def run(options: argparse.Namespace) -> int:
    print(render(options.folder))
    return 0
