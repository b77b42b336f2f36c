"""The number of prompts at which a row would be replicated in 80 % of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

from rebinding.verdicts import Verdict

POWER = 0.8


def sufficient_n(verdict: Verdict, n: int) -> int | None:
    """The number of units (prompts, in most rows) that suffices in one run.

    For a run that replicates this is its N. For an INCONCLUSIVE one it is the N that would decide it if its estimate
    and spread stayed as they are (`rebinding.verdicts.power`). None where no N would, and for every other outcome.
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
