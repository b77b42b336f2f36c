"""The table of rates, for a terminal and for the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rebinding.power.rates import LETTERS, Outcomes, Rates
from rebinding.power.world import declared

HALF = 0.5
HEAD = ("row", "N", "runs", "asserted", "if the paper is right", "if the rival is", "N for 80 %")
LEGEND = (
    "In per cent of runs: R replicated, N not replicated, ? inconclusive, U unidentified (one of several conventions, "
    "and it agrees with none), X invalid (a gate failed)."
)


def cells(one: Rates) -> tuple[str, ...]:
    """A line of the table."""
    runs = one.outcomes["paper"].total()
    shown = (told(one.outcomes["paper"]), told(one.outcomes["rival"]))
    return one.row, str(one.n), str(runs), "yes" if one.asserted else "", *shown, _needed(one)


def told(outcomes: Outcomes) -> str:
    """What came out, the most frequent first."""
    total = outcomes.total()
    return ", ".join(f"{LETTERS[name]} {100 * count / total:.0f}" for name, count in outcomes.most_common())


def _needed(one: Rates) -> str:
    """The fewest that were tried; of a row that does at its own N, and was not tried with fewer, no more is known."""
    if not one.asserted:
        return ""
    if one.enough is None:
        return f"none up to {max(one.sizes)}" if one.sizes else "not its N"
    fewer = any(n < one.n for n in one.sizes)
    return str(one.enough) if fewer or one.enough != one.n else f"at most {one.enough}"


def undecided(found: Iterable[Rates]) -> list[Rates]:
    """Rows asserted on a model on which a true paper is replicated in less than half of the runs."""
    return [one for one in found if one.asserted and one.applies and one.share("REPLICATED") < HALF]


def text(model: str, found: Sequence[Rates]) -> Iterator[str]:
    """For a terminal."""
    yield f"{model}. {LEGEND}"
    lines = [HEAD, *(cells(one) for one in found if one.applies)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    for line in lines:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    yield from (f"  not simulated: {name}: {why}" for name, why in absent(found))


def absent(found: Iterable[Rates]) -> list[tuple[str, str]]:
    """Rows without rates, and why."""
    skipped = [one for one in found if not one.applies]
    return [(one.row, one.not_simulated or "it is not judged on this model, or only reports") for one in skipped]


def markdown(found: Sequence[Rates]) -> Iterator[str]:
    """For the docs: a table a model, the rows that their N cannot decide, and what is assumed."""
    for model in dict.fromkeys(one.model for one in found):
        mine = [one for one in found if one.model == model]
        yield from (f"## {model}", "", _line(HEAD), _line(["---"] * len(HEAD)))
        yield from (_line(cells(one)) for one in mine if one.applies)
        yield from ("", "Not simulated, or not judged here:", "")
        reasons: dict[str, list[str]] = {}
        for name, why in absent(mine):
            reasons.setdefault(why, []).append(f"`{name}`")
        yield from (f"* {why}: {', '.join(names)}." for why, names in reasons.items())
        yield ""
    yield from _undecided(found)
    yield from _assumed()


def _undecided(found: Sequence[Rates]) -> Iterator[str]:
    yield from ("## Rows nobody can decide at their N", "")
    yield f"Asserted on a model, and replicated in less than {HALF:.0%} of the runs in which the paper is right:"
    yield ""
    yield from (f"* `{one.row}` on {one.model}: {told(one.outcomes['paper'])}" for one in undecided(found))
    yield ""


def _assumed() -> Iterator[str]:
    yield from ("## What is assumed", "", "Beside the printed numbers (`rebinding/power/worlds.toml`):", "")
    yield from ("| of | what | value | reason |", "|---|---|---|---|")
    for kind, groups in declared().items():
        flat = {"": groups} if kind == "spread" else groups
        for model, entries in flat.items():
            for name, entry in entries.items():
                yield _line([f"{kind} {model}".strip(), name, f"{entry['value']:g}", entry["reason"]])


def _line(cells_: Sequence[str]) -> str:
    return f"| {' | '.join(one.replace('|', '/') for one in cells_)} |"
