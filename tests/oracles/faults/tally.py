"""Count attempts and outcomes for the table of docs/faults.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Tries by fault, and what came of them."""

    attempts: Counter[str] = field(default_factory=Counter)
    reports: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fault: str, reported: int, faults: list[str]) -> None:
        """One try; `faults` says what should not have happened."""
        self.attempts[fault] += 1
        self.reports[fault] += reported
        self.wrong.setdefault(fault, []).extend(faults)

    @property
    def lines(self) -> list[str]:
        """A line a fault, and one for all."""
        width = max(map(len, self.attempts))
        rows = [f"{'fault':{width}}  tries  reports  wrong"]
        rows += [
            f"{name:{width}}  {self.attempts[name]:5}  {self.reports[name]:7}  {len(self.wrong[name]):5}"
            for name in self.attempts
        ]
        total = sum(self.attempts.values()), sum(self.reports.values()), sum(map(len, self.wrong.values()))
        return [*rows, f"{'all':{width}}  {total[0]:5}  {total[1]:7}  {total[2]:5}"]
