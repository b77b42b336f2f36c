"""`rebinding judge MODEL`: test the paper's claims on models, and print the headline claims."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rebinding.api.judging import check_finished, check_written, run_claims, time_of
from rebinding.cli.options import check_output_folder
from rebinding.study.options import MODEL

PASSES_ON = True
"""Options that this command does not know are those of pytest and of the claims."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"{MODEL}; before all options of the claims",
    )
    parser.add_argument("--all", action="store_true", help="judge every row (default: the rows of the headline claims)")
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="NODE",
        help="judge this row only, as a report's command names it; repeatable (default: the headline rows)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write the page, claims.json and the evidence to this folder (default: no report)",
    )
    parser.add_argument("--json", action="store_true", help="print claims.json and nothing else (default: text)")
    parser.epilog = (
        "All other options are those of `pytest claims` and of pytest, such as --samples 24, --device cpu or -n 2:"
        " see the page Options of the documentation. The exit code is 1 if a row does not come out as expected."
    )


def run(options: argparse.Namespace) -> int:
    check_output_folder("--report", options.report)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report") if options.json and options.report is None else options.report
        earlier = None if out is None else time_of(out / "claims.json")
        words = [] if out is None else ["--report", str(out)]
        code, text = run_claims(
            options.models,
            [*words, *options.rest],
            every_row=options.all,
            tests=options.test,
            capture=options.json,
        )
        if options.json:
            check_finished(code, text)
            assert out is not None
            check_written(out / "claims.json", earlier, text)
            print((out / "claims.json").read_text("utf-8"), end="")
    return code
