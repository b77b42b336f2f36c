"""`python -m tests.oracles.attacks`: how often each rule decides wrongly, before its mend and after it."""

from __future__ import annotations

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from tests.oracles.attacks.attacks import ATTACKS, Attack, Wrong

RUNS = 300


def main() -> None:
    """Print a table in Markdown."""
    print(f"| wrong, in per cent of {RUNS} experiments | before | after |\n|---|---|---|")
    for name, attack in ATTACKS.items():
        before, after = zip(*repeat(attack, RUNS), strict=True)
        print(f"| {name} | {shown(before)} | {shown(after)} |", flush=True)


def repeat(attack: Attack, runs: int) -> list[Wrong]:
    """Run an attack with seeds from 0 on."""
    return [attack(np.random.default_rng(seed)) for seed in range(runs)]


def shown(wrong: tuple[bool, ...]) -> str:
    """The share with its 95 % interval, in per cent."""
    low, high = proportion_confint(sum(wrong), len(wrong), method="beta")
    return f"{100 * np.mean(wrong):.1f} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    main()
