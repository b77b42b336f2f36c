"""How often each verdict comes out of a row, in both worlds, and how many prompts would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rebinding.power.rows import Row, weigh
from rebinding.power.study import Simulated, bench_of, simulated
from rebinding.power.world import WORLDS, NotSimulated, Run, WorldName, world
from rebinding.study.bench import Bench

UNIDENTIFIED = "UNIDENTIFIED"
LETTERS = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", UNIDENTIFIED: "U", "INVALID": "X",
    "NOT APPLICABLE": "-", "REPORTED": "told",
}  # fmt: skip
ENOUGH = 0.8
SIZES = (30, 100, 300, 1000, 3000)
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


def rates(model: str, rows: Sequence[Row], runs: int, seed: int, shared: Bench | None = None) -> list[Rates]:
    """All rows on a model, at their own N."""
    found = {row.claim.id: Rates(row.claim.id, model, row.claim.n, model in row.claim.asserted) for row in rows}
    bench = bench_of(model, shared)
    for name in WORLDS:
        for number in range(runs):
            study = simulated(model, bench, Run(world(name, model), seed + number))
            for row in rows:
                _count(row, study, found[row.claim.id], name)
    return list(found.values())


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
    return UNIDENTIFIED if verdict.reason.startswith("unidentified") and verdict.outcome == "INCONCLUSIVE" else verdict.outcome
