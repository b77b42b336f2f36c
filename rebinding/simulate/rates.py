"""The rates of each verdict of a claim on a model, in the simulated worlds.

**Stopping.** A row ends when its share of the right outcome is surely on one side of its target.

Shares are checked after fixed numbers of samples (looks). The interval of a look is the exact one of Clopper and
Pearson at confidence 1 - 5 % / (number of looks). So with probability 95 % or more the true share lies within the
intervals of all looks, whichever look ended the row.

**N for 80 %** is the number of prompts at which a row would be replicated in 80 % of runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from types import MappingProxyType
from typing import Any, TypeAlias

from rebinding.verdicts import Verdict
from rebinding.verdicts.estimates import clopper_pearson

ERROR = 0.05
"""The probability that any look's interval misses the true share."""
FIRST_LOOK = 25
"""The samples before the first look: 25 of 25 are surely more than 80 %, and 20 of 20 are not."""
MOST_OF_LONG = 50
"""The most samples of rows that discover a circuit."""
HEADLINE_TARGET, TARGET = 0.9, 0.8
"""The required share of right outcomes of a row."""
RIGHT: Mapping[str, str] = MappingProxyType({"paper": "REPLICATED", "rival": "NOT REPLICATED"})
"""The right outcome in each world, for a row that the paper asserts. In a world of one's own none is right."""


def looks(runs: int) -> tuple[int, ...]:
    """The numbers of samples at which a share is checked: twice as many each time, and all of them."""
    numbers = []
    number = FIRST_LOOK
    while number < runs:
        numbers.append(number)
        number *= 2
    return *numbers, runs


def interval(count: int, runs: int, n_looks: int = 1) -> tuple[float, float]:
    """The interval of a share, `count` of `runs`, if it is one of so many looks."""
    if not runs:
        return 0.0, 1.0
    low, high = clopper_pearson(count, runs, 1 - ERROR / n_looks)
    return float(low), float(high)


def is_settled(count: int, runs: int, planned: int, target: float) -> bool:
    """Whether `runs` is a look, and the share is surely above or below its target, or all samples are judged."""
    if runs not in looks(planned):
        return False
    low, high = interval(count, runs, len(looks(planned)))
    return runs == planned or low > target or high < target


POWER = 0.8


def sufficient_n(verdict: Verdict, n: int) -> int | None:
    """The number of units (prompts, in most rows) that suffices in one run.

    For a run that replicates this is its N. For an INCONCLUSIVE one it is the N that would decide it if its estimate
    and spread stayed as they are (`rebinding.verdicts.outcome`). None where no N would, and for every other outcome.
    """
    if verdict.outcome == "REPLICATED":
        return n
    return verdict.needed_n if verdict.outcome == "INCONCLUSIVE" and not verdict.unidentified else None


def n_for_power(sufficient: Sequence[int | None], outcomes: Counter[str], power: float = POWER) -> int | None:
    """The smallest N that suffices in the share `power` of the runs.

    None where it cannot be estimated: too few runs have such an N; or as many runs are NOT REPLICATED as REPLICATED, so
    that more prompts would decide the others against the row.
    """
    sufficient_numbers = sorted(n for n in sufficient if n is not None)
    place = ceil(power * len(sufficient)) - 1
    refuted, replicated = outcomes["NOT REPLICATED"], outcomes["REPLICATED"]
    if not sufficient or place >= len(sufficient_numbers) or (refuted and refuted >= replicated):
        return None
    return sufficient_numbers[place]


UNIDENTIFIED = "UNIDENTIFIED"
LETTERS: Mapping[str, str] = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", UNIDENTIFIED: "U", "INVALID": "X",
    "NOT APPLICABLE": "-", "REPORTED": "told",
}  # fmt: skip
COUNTED = ("REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", UNIDENTIFIED, "INVALID")
"""The outcomes of a judged row, as in `power.json`."""
ENOUGH = TARGET
NOT_JUDGED = ("NOT APPLICABLE", "REPORTED")
ELSEWHERE = "not judged on this model, or only reported"
ALL_MODELS = "all"
"""The model name of rows about the whole run."""
Outcomes: TypeAlias = Counter[str]


@dataclass
class Rates:
    """The verdicts of a claim on a model, counted by world.

    At most `planned` samples of each world are judged; with `in_full` exactly so many. `sufficient` has the N that
    suffices in each run in which the paper is right. `at_spread` has the outcomes of such runs by factor of all
    spreads. `not_simulated` is the reason why nothing was counted.
    """

    row: str
    model: str
    n: int
    asserted: bool
    planned: int
    headline: bool = False
    in_full: bool = False
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    sufficient: list[int | None] = field(default_factory=list)
    at_spread: dict[str, Outcomes] = field(default_factory=dict)
    not_simulated: str | None = None

    def add(self, name: str, verdict: Verdict) -> None:
        """Count the verdict of one sample."""
        self.outcomes.setdefault(name, Counter())[outcome(verdict)] += 1
        if name == "paper":
            self.sufficient.append(sufficient_n(verdict, self.n))

    def add_at_spread(self, factor: float, verdict: Verdict) -> None:
        """Count the verdict of one sample with all spreads multiplied by `factor`."""
        self.at_spread.setdefault(f"{factor:g}", Counter())[outcome(verdict)] += 1

    def runs(self, name: str) -> int:
        """The number of judged samples of a world."""
        return self.outcomes.get(name, Counter()).total()

    def wants(self, name: str) -> bool:
        """Whether another sample of a world could say more."""
        if self.not_simulated is not None or self.runs(name) >= self.planned:
            return False
        if self.is_whole or name not in RIGHT:
            return True
        right = self.outcomes.get(name, Counter())[RIGHT[name]]
        return not is_settled(right, self.runs(name), self.planned, self.target)

    def share(self, outcome: str, name: str = "paper") -> float:
        """The share of an outcome in a world."""
        return self.outcomes.get(name, Counter())[outcome] / max(1, self.runs(name))

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of the share of the right outcome in a world; in one's own, of REPLICATED."""
        counted = RIGHT.get(name, "REPLICATED")
        n_looks = 1 if self.is_whole or name not in RIGHT else len(looks(self.planned))
        return interval(self.outcomes.get(name, Counter())[counted], self.runs(name), n_looks)

    @property
    def is_whole(self) -> bool:
        """Whether every planned sample is judged, however sure the share is."""
        return self.in_full or self.headline

    @property
    def target(self) -> float:
        """The required share of right outcomes of an asserted row."""
        return HEADLINE_TARGET if self.headline else TARGET

    @property
    def needed_n(self) -> int | None:
        """The number of prompts at which 80 % of runs would replicate; None where it cannot be estimated."""
        return n_for_power(self.sufficient, self.outcomes.get("paper", Counter()))

    @property
    def applies(self) -> bool:
        """Whether the claim is judged on this model, in the first simulated world."""
        first = next(iter(self.outcomes.values()), Counter())
        return self.not_simulated is None and any(count for name, count in first.items() if name not in NOT_JUDGED)

    @property
    def why_absent(self) -> str | None:
        """The reason for missing rates; None if there are rates."""
        if self.not_simulated is not None:
            return f"not simulated: {self.not_simulated}"
        return None if self.applies else ELSEWHERE

    def plain(self) -> dict[str, Any]:
        """As JSON, to send it between processes."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        tables = {name: getattr(self, name) for name in ("outcomes", "at_spread")}
        return plain | {name: {key: dict(counts) for key, counts in table.items()} for name, table in tables.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Rates:
        """Read what `plain` returned."""
        tables = {name: plain[name] for name in ("outcomes", "at_spread")}
        counters = {name: {key: Counter(counts) for key, counts in table.items()} for name, table in tables.items()}
        return cls(**{**plain, **counters})

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries of `power.json`: one for each world."""
        for name, counts in self.outcomes.items():
            entry = {"id": self.row, "model": self.model, "world": name, "asserted": self.asserted}
            by_outcome = {key.lower().replace(" ", "_"): counts[key] for key in COUNTED}
            yield {**entry, "runs": counts.total(), **by_outcome}


def outcome(verdict: Verdict) -> str:
    """The verdict in a word; UNIDENTIFIED for an open verdict that agrees with none of several conventions."""
    is_open = verdict.outcome == "INCONCLUSIVE"
    return UNIDENTIFIED if is_open and verdict.unidentified else verdict.outcome


def below_target(rates: Iterable[Rates], name: str = "paper") -> Iterator[Rates]:
    """Asserted claims with too few right outcomes. In the rival's world only headline rows count, because a printed
    value has no rival that can be distinguished on every model."""
    for row in rates:
        counts = row.asserted and row.applies and (name == "paper" or row.headline)
        if counts and row.runs(name) and row.share(RIGHT[name], name) < row.target:
            yield row
