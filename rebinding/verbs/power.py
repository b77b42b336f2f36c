"""`python -m rebinding power`: how often each verdict comes out if the paper is right, and if its rival is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rebinding.power.rates import Rates, rates, searched
from rebinding.power.rows import chosen
from rebinding.power.table import LEGEND, markdown, text
from rebinding.subjects import ALIASES
from rebinding.verbs.checks import check_number, check_output_file

RUNS = 10
INTRODUCTION = f"""# How often each verdict would come out

Written by `python -m rebinding power --runs {{runs}}{{more}} --markdown docs/power.md` (seed {{seed}}). No model runs:
evidence of each row's own kind is made up, and judged by the row's own test, with its gates and its rule. In one world
what the paper prints is true, and what it says in words has a declared size; in the other its rival is: no effect, or
in section 5 the signature that is printed of the other family. Spreads are declared and pessimistic; the list is at
the end. {LEGEND}

A share of {{runs}} runs is known to give or take {{points:.0f}} points (95 %, where it is a half); rows that have to
discover a circuit get half of the runs, or one.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=tuple(ALIASES), help="one of the paper's models (default: all four)")
    parser.add_argument("--row", metavar="ID", help="rows whose id begins so (default: all)")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"samples of each world (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first sample (default 0)")
    parser.add_argument("--no-search", action="store_true", help="do not look for the N that would do")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="models at a time (default 2)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there as well")


def run(options: argparse.Namespace) -> int:
    check_number("--runs", options.runs, least=1)
    check_number("--jobs", options.jobs, least=1)
    check_number("--seed", options.seed)
    check_output_file("--markdown", options.markdown)
    rows = chosen(options.row)  # refused here, before processes start
    models = (options.model,) if options.model else tuple(ALIASES)
    work = partial(judged, options.row, options.runs, options.seed, not options.no_search)
    found: list[Rates] = []
    for one in _each(work, models, options.jobs):
        print("\n".join(text(one[0].model, one)), flush=True)
        found += one
    if options.markdown:
        more = "".join(f" --{name} {value}" for name in ("model", "row") if (value := getattr(options, name)))
        more += " --no-search" if options.no_search else ""
        head = INTRODUCTION.format(runs=options.runs, seed=options.seed, more=more, points=100 / options.runs**0.5)
        options.markdown.write_text("\n".join([head, *markdown(found)]) + "\n", encoding="utf-8")
        print(f"{len(rows)} rows: {options.markdown}", file=sys.stderr)
    return 0


def judged(wanted: str | None, runs: int, seed: int, search: bool, model: str) -> list[Rates]:
    """All that is told of a model."""
    rows = chosen(wanted)
    found = rates(model, rows, runs, seed)
    if search:
        searched(model, found, rows, max(1, runs // 2), seed)
    return found


def _each(work: Callable[[str], list[Rates]], models: Sequence[str], jobs: int) -> Iterator[list[Rates]]:
    """One model after the other, or some at a time, in their order."""
    if min(jobs, len(models)) == 1:
        yield from map(work, models)
        return
    with ProcessPoolExecutor(min(jobs, len(models)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, models)
