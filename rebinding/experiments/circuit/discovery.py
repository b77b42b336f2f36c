"""Section 4.1: from scores to a circuit, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias
from warnings import warn

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.evidence.store import Shelf
from rebinding.experiments.circuit.paths import PAPER, NoisePairs, PathSettings, Stage, score_stage
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.surgery import Surgeon

Selection: TypeAlias = Literal["negative", "published"]
"""`negative`: only scores clearly below zero are selected. `published`: the k lowest, whatever they are."""

LEAST = 1e-3
"""A head that moves the answer's probability by less than a tenth of a per cent is not selected: a head that sends
nothing moves it by rounding, and half of these moves are falls."""

TINY = 1e-3
"""Below this probability of the answer, a relative change says more about the denominator than about the head."""


class TinyProbabilities(UserWarning):
    """Scores dominated by prompts on which the model gives the answer next to no probability."""


@dataclass(frozen=True)
class Discovery:
    """The circuit, and for every stage its evidence (none where it had no receivers)."""

    circuit: Circuit
    evidence: dict[str, Evidence]


def scores(evidence: Evidence) -> pd.DataFrame:
    """Per head: the mean over prompts of (p_patch - p_orig) / p_orig, its standard error, and the mean logit change."""
    rows = evidence.rows
    tiny = rows.loc[rows["p_orig"] < TINY, "prompt"].nunique()
    if tiny:
        warn(
            f"{tiny} of {rows['prompt'].nunique()} prompts have an answer probability below {TINY}: relative changes "
            "on them can dominate the mean; look at the logit changes in the evidence too",
            TinyProbabilities,
            stacklevel=2,
        )
    change, logit = changes(evidence), _by_head(rows, rows["logit_patch"] - rows["logit_orig"])
    n = change.count()
    columns = {"score": change.mean(), "se": (change.std() / n**0.5).fillna(0.0), "logit_change": logit.mean(), "n": n}
    return pd.DataFrame(columns).sort_index().reset_index()


def changes(evidence: Evidence) -> pd.DataFrame:
    """(p_patch - p_orig) / p_orig: a line a prompt, a column a head, named (layer, head)."""
    rows = evidence.rows
    return _by_head(rows, (rows["p_patch"] - rows["p_orig"]) / rows["p_orig"])


def _by_head(rows: pd.DataFrame, values: pd.Series[float]) -> pd.DataFrame:
    return rows.assign(value=values).pivot(index="prompt", columns=["layer", "head"], values="value")


def select(
    table: pd.DataFrame, keep: int, *, rule: Selection = "negative", least: float = LEAST, exclude: Sequence[Head] = ()
) -> list[Head]:
    """The `keep` most negative heads, ties broken by (layer, head); those of earlier groups left out if `exclude`d.

    Under the rule `negative` a score must lie below `-least`.
    """
    left = table[[(layer, head) not in set(exclude) for layer, head in zip(table["layer"], table["head"], strict=True)]]
    if rule == "negative":
        left = left[left["score"] < -least]
    best = left.sort_values(["score", "layer", "head"]).head(keep)
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


def discover(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stages: Sequence[Stage] = PAPER,
    *,
    settings: PathSettings | None = None,
    rule: Selection = "negative",
    least: float = LEAST,
    distinct: bool = False,
    described: dict[str, Any] | None = None,
    shelf: Shelf | None = None,
) -> Discovery:
    """Run the stages in order on some prompts."""
    settings = settings or PathSettings()
    about = {**asdict(settings), "prompts": len(pairs.ids), **(described or {})}
    return discover_by(
        lambda stage, receivers: score_stage(surgeon, pairs, stage, receivers, settings=settings, shelf=shelf),
        stages,
        rule=rule,
        least=least,
        distinct=distinct,
        described=about,
    )


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    rule: Selection = "negative",
    least: float = LEAST,
    distinct: bool = False,
    described: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage whose receivers are empty gives an empty group.

    With `distinct`, heads taken by an earlier stage are not taken again. As published, a head found in both A and B
    belongs to B (the two act at the same token); other heads may act in several groups at their roles.
    """
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        found = score(stage, receivers)
        earlier = [head for heads in groups.values() for head in heads] if distinct else []
        groups[stage.group] = select(scores(found), stage.keep, rule=rule, least=least, exclude=earlier)
        evidence[stage.group] = found
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _taken_later(stages[number + 1 :], groups, stage, (layer, head))
    )
    how = {"stages": [asdict(stage) for stage in stages], "rule": rule, "least": least, "distinct": distinct}
    return Discovery(Circuit(heads, {**how, **(described or {})}), evidence)


def _taken_later(later: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether a later stage with the same sender role has the head too: it is then that one's."""
    return any(other.sender == stage.sender and head in groups[other.group] for other in later)
