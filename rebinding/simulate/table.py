"""The tables of rates: for a terminal, for a page of the docs, and of every row as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from rebinding.paper.claim import undecided
from rebinding.simulate.rates import ALL_MODELS, LETTERS, MOST_OF_LONG, Outcomes, Rates, below_target, looks
from rebinding.simulate.worlds import declared

WORLD_HEADS: dict[str, tuple[str, str]] = {
    "paper": ("if the paper is right", "R, 95 % interval"),
    "rival": ("if the rival is", "N, 95 % interval"),
}
NEEDED = "N for 80 %"
CSV_FILE = "power.csv"
LEGEND = """In per cent of runs: R replicated, N not replicated, ? inconclusive, U open because the convention is not
identified (a value agrees with none, a sentence is refuted under some), X invalid (a gate failed)."""
INTRODUCTION = """# How often each verdict would come out

Written by `{command}` (first seed {seed}).

No model runs: evidence of each row's own kind is simulated, and judged by the row's own test, with its gates and its
rule. In one world what the paper prints is true, and what it says in words has a declared size; in the other its rival
is: no effect, or in section 5 the signature that is printed of the other family. Spreads are declared and pessimistic;
the list is at the end.

The tables have the headline rows. Below them are the exceptions of all other rows; every row is in `{table}`.

{legend}

{precision}

*N for 80 %* is the number of prompts (of the row's unit) that suffices in four of five runs in which the paper is
right. A run that replicates at N needs no more than N; an INCONCLUSIVE one states the N that would decide it if its
estimate and its spread stayed as they are. "-" stands where that is not known: no number would do, or more prompts
would decide against the row. Rows about the whole run stand under `all`: run k of every model is one run of them.

*Asserted* says of which rows REPLICATED is expected: `no` where the paper says the sentence of the model and the row
would not replicate in 80 % of runs even so; the reasons stand below the tables. Such a row is judged and reported.
"""


def head(worlds: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns."""
    columns = ["row", "N", "runs", "asserted"]
    for number, name in enumerate(worlds):
        columns += ["runs"] if number else []
        columns += [
            *WORLD_HEADS.get(name, (f"if means are those of {name}", "R, 95 % interval")),
            *([NEEDED] if name == "paper" else []),
        ]
    return tuple(columns)


def cells(row: Rates) -> tuple[str, ...]:
    """A line of the table."""
    by_world: list[str] = []
    for name, counts in row.outcomes.items():
        low, high = row.interval(name)
        by_world += [str(counts.total())] if by_world else []
        by_world += [in_per_cent(counts), f"{100 * low:.0f} to {100 * high:.0f}"]
        by_world += [needed(row)] if name == "paper" else []
    first = next(iter(row.outcomes.values()))
    return row.row, str(row.n), str(first.total()), asserted_text(row), *by_world


def asserted_text(row: Rates) -> str:
    """`yes` for an asserted row; `no` for one that is not, although the paper says its sentence of the model."""
    return "yes" if row.asserted else "no" if (row.row, row.model) in undecided() else ""


def needed(row: Rates) -> str:
    """The number of prompts that would suffice."""
    n = row.needed_n
    if n is None:
        return "-"
    return f"up to {n}" if n <= row.n else str(n)


def in_per_cent(outcomes: Outcomes) -> str:
    """The outcomes in per cent, the most frequent first."""
    total = outcomes.total()
    return ", ".join(f"{LETTERS[name]} {100 * count / total:.0f}" for name, count in outcomes.most_common())


def precision(runs: int) -> str:
    """The number of runs of a row, and the meaning of its interval."""
    after = ", ".join(map(str, looks(runs)))
    return (
        f"A headline row gets {runs} runs in each world, any other at most {runs}, and one that discovers a circuit at"
        f" most {min(runs, MOST_OF_LONG)}.\nThe share of the others is checked after {after} runs, and they end when"
        " the interval excludes the target of 80 %.\nIntervals are those of Clopper and Pearson at 95 %, or at 1 - 5 %"
        " / (number of looks): 95 % whichever look ended the row."
    )


def text(model: str, rates: Sequence[Rates], worlds: Sequence[str]) -> Iterator[str]:
    """The table of one model, for a terminal."""
    yield model
    lines = [head(worlds), *(cells(row) for row in rates if row.applies)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if len(lines) > 1 else []:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    yield from (f"  {why}: {', '.join(names)}" for why, names in absent(rates).items())


def absent(rates: Sequence[Rates]) -> dict[str, list[str]]:
    """Rows without rates, by the reason."""
    reasons: dict[str, list[str]] = {}
    for row in rates:
        if row.why_absent is not None:
            reasons.setdefault(row.why_absent, []).append(row.row)
    return reasons


def as_csv(rates: Sequence[Rates], worlds: Sequence[str]) -> str:
    """Every row on every model; the last column says why a row has no rates."""
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    columns = head(worlds)
    writer.writerow(("model", *columns, "no rates"))
    for row in rates:
        known = cells(row) if row.applies else (row.row, str(row.n), "", asserted_text(row))
        writer.writerow((row.model, *known, *[""] * (len(columns) - len(known)), row.why_absent or ""))
    return output.getvalue()


def page(command: str, runs: int, seed: int, rates: Sequence[Rates], worlds: Sequence[str]) -> Iterator[str]:
    """The page of the docs: a table of headline rows per model, the rows of all that their N cannot decide, and the
    assumptions."""
    yield INTRODUCTION.format(command=command, seed=seed, legend=LEGEND, precision=precision(runs), table=CSV_FILE)
    headline = [row for row in rates if row.headline or row.model == ALL_MODELS]
    for model in dict.fromkeys(row.model for row in headline):
        rows = [row for row in headline if row.model == model]
        yield from (f"## {model}", "", table_line(head(worlds)), table_line(["---"] * len(head(worlds))))
        yield from (table_line(cells(row)) for row in rows if row.applies)
        yield from ("", "Not simulated, or not judged here:", "")
        yield from (f"* {why}: {', '.join(f'`{name}`' for name in names)}." for why, names in absent(rows).items())
        yield ""
    yield from unasserted_section(rates)
    for name in (name for name in worlds if name in WORLD_HEADS):
        yield from short_section(rates, name)
    yield from spread_section(rates)
    yield from other_worlds_section(rates, worlds)
    yield from assumptions()


def spread_section(rates: Sequence[Rates]) -> Iterator[str]:
    """The rates of headline rows at other spreads, if they were requested."""
    rows = [row for row in rates if row.at_spread]
    if not rows:
        return
    factors = sorted({factor for row in rows for factor in (*row.at_spread, "1")}, key=float)
    yield from ("## Headline rows at other spreads", "")
    yield "In per cent of runs in which the paper is right, if every declared spread is so many times as large:"
    yield from ("", table_line(["row", "model", *(f"x {factor}" for factor in factors)]))
    yield table_line(["---"] * (2 + len(factors)))
    for row in rows:
        counts = {"1": row.outcomes["paper"], **row.at_spread}
        yield table_line([row.row, row.model, *(in_per_cent(counts[factor]) for factor in factors)])
    yield ""


def other_worlds_section(rates: Sequence[Rates], worlds: Sequence[str]) -> Iterator[str]:
    """The rates of asserted headline rows in worlds from files, beside the paper's, if they were requested."""
    names = [name for name in worlds if name != "rival"]
    rows = [row for row in rates if row.asserted and row.applies and (row.headline or row.model == ALL_MODELS)]
    if names in ([], ["paper"]) or not rows:
        return
    yield from ("## Headline rows in other worlds", "", "In per cent of runs, asserted rows only:", "")
    yield from (table_line(["row", "model", *names]), table_line(["---"] * (2 + len(names))))
    yield from (table_line([row.row, row.model, *(in_per_cent(row.outcomes[name]) for name in names)]) for row in rows)
    yield ""


def unasserted_section(rates: Sequence[Rates]) -> Iterator[str]:
    """The rows that are not asserted because they replicate too rarely, with the reason."""
    rows = [row for row in rates if (row.row, row.model) in undecided() and row.runs("paper")]
    if not rows:
        return
    yield from ("## Rows that are not asserted", "", "They would replicate too seldom where the paper is right:", "")
    for row in rows:
        yield f"* `{row.row}` on {row.model}: {in_per_cent(row.outcomes['paper'])}; {undecided()[row.row, row.model]}"
    yield ""


def short_section(rates: Sequence[Rates], name: str) -> Iterator[str]:
    """The asserted rows with too few right outcomes."""
    title, whose, right = {
        "paper": ("Asserted rows that replicate too seldom", "rows", "replicated"),
        "rival": ("Headline rows that are refuted too seldom", "headline rows", "not replicated"),
    }[name]
    yield from (f"## {title}", "")
    yield f"Asserted {whose} below their target: {right} in too few of the runs in which the {name} is right."
    yield ""
    for row in below_target(rates, name):
        yield f"* `{row.row}` on {row.model}: {in_per_cent(row.outcomes[name])} (target {100 * row.target:.0f})"
    yield ""


def assumptions() -> Iterator[str]:
    """The declared means and spreads of the worlds, with the reasons."""
    yield from ("## What is assumed", "", "Beside the printed numbers (`rebinding/simulate/worlds.toml`):", "")
    yield from ("| of | what | value | basis | reason |", "|---|---|---|---|---|")
    for kind, groups in declared().items():
        flat = {"": groups} if kind == "spread" else groups
        for model, entries in flat.items():
            for name, entry in entries.items():
                size, basis = f"{entry['value']:g}", entry.get("basis", "declared")
                yield table_line([f"{kind} {model}".strip(), name, size, basis, entry["reason"]])


def table_line(texts: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"
