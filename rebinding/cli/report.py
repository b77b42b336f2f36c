"""`rebinding report FOLDER`: render the page of a report again, from the files in the folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.report.page import render
from rebinding.report.schema import ReportError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder made with `pytest claims --report DIR`")


def run(options: argparse.Namespace) -> int:
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
