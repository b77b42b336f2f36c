"""How often each verdict comes out of a row, in both worlds, and how many prompts would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rebinding.power.rows import Row, weigh
from rebinding.power.study import Simulated, bench_of, simulated
from rebinding.power.world import WORLDS, NotSimulated, Run, WorldName, world

UNIDENTIFIED = "UNIDENTIFIED"
LETTERS: Mapping[str, str] = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", UNIDENTIFIED: "U", "INVALID": "X",
    "NOT APPLICABLE": "-", "REPORTED": "told",
}  # fmt: skip
ENOUGH = 0.8
DISCOVERED = tuple(
    f"circuit.{name}"
    for name in ("heads_found_again", "compact", "three_to_ten_percent", "group_e_empty", "group_e_present", "minimal")
)
SIZES = (30, 100, 1000)
"""What `--samples` is tried with, to see how many prompts would do."""
Outcomes: TypeAlias = Counter[str]


@dataclass
class Rates:
    """What came out of a row on a model."""

    row: str
    model: str
    n: int
    asserted: bool
    outcomes: dict[WorldName, Outcomes] = field(default_factory=lambda: {name: Counter() for name in WORLDS})
    not_simulated: str | None = None
    sizes: dict[int, float] = field(default_factory=dict)
    """The share of REPLICATED in the paper's world, by number of prompts."""

    def share(self, outcome: str, name: WorldName = "paper") -> float:
        """How often an outcome came out in a world."""
        return self.outcomes[name][outcome] / max(1, self.outcomes[name].total())

    @property
    def applies(self) -> bool:
        """Whether the row is judged on this model at all."""
        return self.not_simulated is None and self.share("NOT APPLICABLE") < 1 and self.share("REPORTED") < 1

    @property
    def enough(self) -> int | None:
        """The fewest prompts that were tried at which four in five runs are REPLICATED."""
        known = self.sizes | {self.n: self.share("REPLICATED")}
        return next((n for n in sorted(known) if known[n] >= ENOUGH), None)


def rates(model: str, rows: Sequence[Row], runs: int, seed: int) -> list[Rates]:
    """All rows on a model, at their own N."""
    found = {row.claim.id: Rates(row.claim.id, model, row.claim.n, model in row.claim.asserted) for row in rows}
    bench = bench_of(model)
    for name in WORLDS:
        for number in range(runs):
            study = simulated(model, bench, Run(world(name, model), seed + number))
            for row in rows:
                if number < runs_of(row, runs):
                    _count(row, study, found[row.claim.id], name)
    return list(found.values())


def runs_of(row: Row, runs: int) -> int:
    """Rows that a discovery has to be made up for, of every head on every prompt, get half of the runs."""
    return max(1, runs // 2) if row.claim.id.startswith(DISCOVERED) else runs


def searched(model: str, found: Sequence[Rates], rows: Sequence[Row], runs: int, seed: int) -> None:
    """Try other numbers of prompts for the asserted rows of a model: fewer where its own N does, more where not."""
    judged, bench = {row.claim.id: row for row in rows if not row.claim.id.startswith(DISCOVERED)}, bench_of(model)
    for n in SIZES:
        wanted = [one for one in found if one.row in judged and one.asserted and one.applies and _worth(one, n)]
        hits: Outcomes = Counter()
        for number in range(runs if wanted else 0):
            study = simulated(model, bench, Run(world("paper", model), seed + number), n)
            hits.update(one.row for one in wanted if outcome(judged[one.row], study) == "REPLICATED")
        for one in wanted:
            one.sizes[n] = hits[one.row] / runs


def _worth(one: Rates, n: int) -> bool:
    return n < one.n if one.share("REPLICATED") >= ENOUGH else n > one.n


def _count(row: Row, study: Simulated, found: Rates, name: WorldName) -> None:
    if found.not_simulated is not None:
        return
    try:
        found.outcomes[name][outcome(row, study)] += 1
    except NotSimulated as why:
        found.not_simulated = str(why)


def outcome(row: Row, study: Simulated) -> str:
    """The verdict of a row, in a word."""
    study.used.clear()
    verdict = weigh()(row.claim, study, lambda: row.test(row.claim, study))
    open_ = verdict.outcome == "INCONCLUSIVE"
    return UNIDENTIFIED if open_ and verdict.reason.startswith("unidentified") else verdict.outcome
