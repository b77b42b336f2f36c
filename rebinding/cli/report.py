"""`python -m rebinding report FOLDER`: render the page of a report again, from the files in the folder.

`python -m rebinding report FIRST SECOND` prints what changed from one report to another.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.report.compare import Comparison
from rebinding.report.folder import read
from rebinding.report.page import render
from rebinding.report.schema import ReportError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder made with `pytest claims --report DIR`")
    parser.add_argument(
        "other",
        type=Path,
        nargs="?",
        metavar="OTHER",
        help="a later report: print what changed; exit status 1 if a verdict did (default: make the page of DIR again)",
    )


def run(options: argparse.Namespace) -> int:
    if options.other is not None:
        comparison = Comparison(read(options.folder), read(options.other))
        print("\n".join(comparison.lines()))
        return int(bool(comparison.verdicts))
    try:
        print(render(options.folder))
    except (ReportError, OSError):
        raise
    except Exception as error:  # a folder from elsewhere may hold any table
        raise ReportError(
            f"no page can be made of the evidence in {options.folder} ({type(error).__name__}: {error}): it is not as"
            " this version writes it; make it again with `pytest claims --report`"
        ) from error
    return 0
