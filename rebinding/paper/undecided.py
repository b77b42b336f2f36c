"""Rows that even a true paper would seldom replicate, as printed and at their N: which, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from rebinding.paper.numbers import contradictions

SHORT = "replicated in less than 80 % of simulated runs in which the paper is right"
AGAINST = "text against own table"


@cache
def undecided() -> Mapping[tuple[str, str], str]:
    """The reason, by row and model."""
    rows = tomllib.loads(files("rebinding.paper").joinpath("undecided.toml").read_text(encoding="utf-8"))["rows"]
    told = [((claim, model), one["why"]) for one in rows for claim in one["claims"] for model in one["models"]]
    found = dict(told)
    if len(found) < len(told):
        twice = sorted({key for key, _ in told if sum(key == other for other, _ in told) > 1})
        raise ValueError(f"undecided.toml gives two reasons for {', '.join(' on '.join(key) for key in twice)}")
    return MappingProxyType(found)


def label(id: str, sentence: str, model: str | None) -> str | None:
    """What is to be known of a row before it is read, on one of the paper's models: that the printed numbers say
    otherwise than its sentence, or that they would seldom be told from others. A sentence is judged by the same numbers
    under both procedures; what made-up evidence says is said of the row."""
    against = [one.why for one in contradictions() if (one.claim, one.model) == (sentence, model)]
    short = undecided().get((id, model or ""))
    found = [f"{AGAINST}: {'; '.join(against)}"] if against else []
    found += [f"{SHORT}: {short}"] if short else []
    return "; ".join(found) or None
