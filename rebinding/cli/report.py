"""`rebinding report FOLDER`: render the page of a report again, from the files in the folder; or check its evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from rebinding.report.files import ReportError
from rebinding.report.page import render
from rebinding.study.options import declare, help_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder made with `pytest claims --report DIR`")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="DIR",
        help="the folder of an earlier report: the page says what has changed since (default: none)",
    )
    parser.add_argument(
        "--recheck",
        type=int,
        metavar="N",
        help="compute N random rows of the evidence again (default: make the page again; e.g. --recheck 60)",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="with --recheck, the model (default: the only one of the report, by its name)"
    )
    declare(parser.add_argument, "--device", help=f"with --recheck, {help_of('--device')}")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="with --recheck, draw the rows of this seed again (default: a new draw)"
    )
    parser.epilog = "With --recheck the exit code is 1 if a row differs by more than rounding allows."


def run(options: argparse.Namespace) -> int:
    if options.recheck is not None:
        from rebinding.cli.recheck import RecheckOptions, run_recheck  # imports torch

        return run_recheck(options.folder, RecheckOptions(options.recheck, options.model, options.device, options.seed))
    for name, default in (("model", None), ("seed", None), ("device", "auto")):
        if getattr(options, name) != default:
            raise ReportError(f"--{name} has a meaning only with --recheck N")
    try:
        print(render(options.folder, earlier=options.compare))
    except (ReportError, OSError):
        raise
    except Exception as error:  # a folder from elsewhere may hold any table
        raise ReportError(
            f"no page can be made of the evidence in {options.folder} ({type(error).__name__}: {error}): it is not as"
            " this version writes it; make it again with `pytest claims --report`"
        ) from error
    return 0
