"""The rates of each verdict of a claim on a model, in the simulated worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from rebinding.simulate.needed import n_for_power, sufficient_n
from rebinding.simulate.stopping import HEADLINE_TARGET, RIGHT, TARGET, interval, is_settled, looks
from rebinding.verdicts import Verdict

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
