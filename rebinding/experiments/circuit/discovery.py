"""Section 4.1: from scores to a circuit, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
from warnings import warn

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import stdtr

from rebinding.evidence import Evidence
from rebinding.evidence.once import once
from rebinding.evidence.store import Shelf
from rebinding.experiments.circuit.paths import PAPER, NoisePairs, PathSettings, Stage, score_stage
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.surgery import Surgeon
from rebinding.world.strata import numbered, spread

Scale: TypeAlias = Literal["probability", "logit"]
"""What a head's score is made of. `probability`: (p_patch - p_orig) / p_orig, as published. `logit`: by how much the
answer's lead over the other objects falls. Where the answer is sure (p 0.998) a fall of one per cent of p takes two
logits, and where p is small noise decides; a lead moves alike in both."""
Selection: TypeAlias = Literal["sure", "negative", "published"]
"""`sure`: scores that are below `-least` whatever the prompts, so that of the heads kept one in twenty at most is
expected to be there by luck; `negative`: scores below `-least`; `published`: the k lowest, whatever they are."""

LEAST: Mapping[Scale, float] = MappingProxyType({"probability": 1e-3, "logit": 0.05})
"""A head that moves the answer's probability by less than a tenth of a per cent, or its lead by less than a twentieth
of a logit (odds by a factor of 1.05), is not selected. A head that sends nothing moves either by rounding, and half of
these moves are falls."""
ERROR = 0.05

TINY = 1e-3
"""Below this probability of the answer, a relative change says more about the denominator than about the head."""


class TinyProbabilities(UserWarning):
    """Scores dominated by prompts on which the model gives the answer next to no probability."""


@dataclass(frozen=True)
class Discovery:
    """The circuit, and for every stage its evidence (none where it had no receivers)."""

    circuit: Circuit
    evidence: dict[str, Evidence]


def scores(evidence: Evidence, scale: Scale = "probability") -> pd.DataFrame:
    """Per head: the mean change over prompts, its standard error within their strata, and degrees of freedom."""
    if scale == "probability":
        _warn_of_tiny(evidence.rows)
    return _scored(evidence, scale)


@once
def _scored(evidence: Evidence, scale: Scale) -> pd.DataFrame:
    change = changes(evidence, scale)
    return estimated(change, strata_of(evidence, change))


def estimated(change: pd.DataFrame, strata: Sequence[int]) -> pd.DataFrame:
    """Per head, from a line a prompt and the prompts' strata: the mean change, its standard error, and degrees of
    freedom."""
    found = spread(change.to_numpy(), strata)
    columns = {"score": found.mean, "se": found.error, "freedom": found.freedom}
    return pd.DataFrame(columns, index=change.columns).sort_index().reset_index()


def strata_of(evidence: Evidence, change: pd.DataFrame) -> list[int]:
    """The number of each prompt's stratum, in the order of the changes."""
    told = evidence.rows.groupby("prompt")["stratum"].first().loc[change.index]
    return numbered([tuple(map(int, one.split("."))) for one in told])


def _warn_of_tiny(rows: pd.DataFrame) -> None:
    tiny = rows.loc[rows["p_orig"] < TINY, "prompt"].nunique()
    if tiny:
        warn(
            f"{tiny} of {rows['prompt'].nunique()} prompts have an answer probability below {TINY}: relative changes "
            "on them can dominate the mean; score by the logit",
            TinyProbabilities,
            stacklevel=3,
        )


def changes(evidence: Evidence, scale: Scale = "probability") -> pd.DataFrame:
    """The change on its scale: a line a prompt, a column a head, named (layer, head)."""
    rows = evidence.rows
    if scale == "logit":
        value = rows["lead_patch"] - rows["lead_orig"]
    else:
        value = (rows["p_patch"] - rows["p_orig"]) / rows["p_orig"]
    return rows.assign(value=value).pivot(index="prompt", columns=["layer", "head"], values="value")


def select(
    table: pd.DataFrame, keep: int, *, rule: Selection = "negative", least: float, exclude: Sequence[Head] = ()
) -> list[Head]:
    """The `keep` most negative heads, ties broken by (layer, head); those to `exclude` left out.

    Under `negative` a score must lie below `-least`, under `sure` surely so: one-sided t tests over prompts, whose
    spread is that within strata (a head may serve one order of naming only), with the false discovery rate over all
    heads held at 5 % (Benjamini and Hochberg).
    """
    left = table[[(layer, head) not in set(exclude) for layer, head in zip(table["layer"], table["head"], strict=True)]]
    if rule == "negative":
        left = left[left["score"] < -least]
    elif rule == "sure":
        gap = (left["score"] + least).to_numpy()
        errors = np.maximum(left["se"].to_numpy(), np.finfo(float).tiny)  # no spread at all is a sign, and no 0 / 0
        p_values = stdtr(np.maximum(left["freedom"].to_numpy(), 1), gap / errors)
        left = left[(gap < 0) & (stats.false_discovery_control(p_values) <= ERROR)]
    best = left.sort_values(["score", "layer", "head"]).head(keep)
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


def discover(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stages: Sequence[Stage] = PAPER,
    *,
    settings: PathSettings | None = None,
    scale: Scale = "logit",
    rule: Selection = "sure",
    least: float | None = None,
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
        scale=scale,
        rule=rule,
        least=least,
        distinct=distinct,
        described=about,
    )


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    scale: Scale = "logit",
    rule: Selection = "sure",
    least: float | None = None,
    distinct: bool = False,
    described: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage whose receivers are empty gives an empty group.

    With `distinct`, heads taken by an earlier stage are not taken again. As published, a head found in both A and B
    belongs to B (the two act at the same token); other heads may act in several groups at their roles.
    """
    least = LEAST[scale] if least is None else least
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        found = score(stage, receivers)
        earlier = [head for heads in groups.values() for head in heads] if distinct else []
        groups[stage.group] = select(scores(found, scale), stage.keep, rule=rule, least=least, exclude=earlier)
        evidence[stage.group] = found
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _taken_later(stages[number + 1 :], groups, stage, (layer, head))
    )
    how = {
        "stages": [asdict(stage) for stage in stages],
        "scale": scale,
        "rule": rule,
        "least": least,
        "distinct": distinct,
    }
    return Discovery(Circuit(heads, {**how, **(described or {})}), evidence)


def _taken_later(later: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether a later stage with the same sender role has the head too: it is then that one's."""
    return any(other.sender == stage.sender and head in groups[other.group] for other in later)
