"""`python -m rebinding report FOLDER`: make the page of a report again, from what the folder holds.

`python -m rebinding report FIRST SECOND` says what changed from one
report to another.
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
        "other", type=Path, nargs="?", metavar="OTHER", help="a later report: say what changed; 1 if a verdict did"
    )


def run(options: argparse.Namespace) -> int:
    if options.other is not None:
        found = Comparison(read(options.folder), read(options.other))
        print("\n".join(found.lines()))
        return int(bool(found.verdicts))
    try:
        print(render(options.folder))
    except (ReportError, OSError):
        raise
    except Exception as error:  # a stranger's folder may hold any table: other columns, layers that there are not
        raise ReportError(
            f"no page can be made of the evidence in {options.folder} ({type(error).__name__}: {error}): it is not as"
            " this version writes it; make it again with `pytest claims --report`"
        ) from error
    return 0
