"""`rebinding new-suite FOLDER`: write a suite of one claim, to be changed into one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.cli.options import check_output_folder, readable

FILE = "test_claims.py"
TEMPLATE = Path(__file__).parents[1] / "testing" / "first_suite.py"
"""The suite that is written. Nothing imports it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"where to write {FILE}; a folder that may be new")


def run(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    check_output_folder("FOLDER", folder)
    path = folder / FILE
    if path.exists():
        raise ValueError(f"{path} exists and is not overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(TEMPLATE.read_text("utf-8"), "utf-8")
    print(readable(f"written: {path}\njudge it: pytest {folder} --model planted:pointer --report report"))
    return 0
