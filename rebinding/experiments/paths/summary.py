"""From path patching to scores, and from scores to the heads that are selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias
from warnings import warn

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from scipy.special import stdtr

from rebinding.evidence import Evidence
from rebinding.evidence.evidence import once
from rebinding.experiments.seeds import RESAMPLED
from rebinding.paper.circuit import Head
from rebinding.task.strata import numbered, spread

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
RESAMPLES = 20
Array: TypeAlias = npt.NDArray[np.float64]


class TinyProbabilities(UserWarning):
    """Scores dominated by prompts on which the model gives the answer next to no probability."""


def scores(evidence: Evidence, scale: Scale = "probability") -> pd.DataFrame:
    """Per head: the mean change over prompts, its standard error within their strata, and degrees of freedom."""
    if scale == "probability":
        _warn_of_tiny(evidence.rows)
    return _scored(evidence, scale)


@once
def _scored(evidence: Evidence, scale: Scale) -> pd.DataFrame:
    change = changes(evidence, scale)
    return estimated(change, strata_of(evidence, change))


def scores_by_head(evidence: Evidence, scale: Scale) -> dict[Head, float]:
    """Every sender's score; the lowest is the largest fall."""
    table = scores(evidence, scale)
    return {(int(layer), int(head)): float(score) for layer, head, score in table[["layer", "head", "score"]].values}


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
    left, taken = table, set(exclude)
    if taken:
        left = table[[head not in taken for head in zip(table["layer"], table["head"], strict=True)]]
    if rule == "negative":
        left = left[left["score"] < -least]
    elif rule == "sure":
        gap = (left["score"] + least).to_numpy()
        errors = np.maximum(left["se"].to_numpy(), np.finfo(float).tiny)  # no spread at all is a sign, and no 0 / 0
        p_values = stdtr(np.maximum(left["freedom"].to_numpy(), 1), gap / errors)
        left = left[(gap < 0) & (stats.false_discovery_control(p_values) <= ERROR)]
    order = np.lexsort([left[name].to_numpy() for name in ("head", "layer", "score")])  # the last key counts first
    best = left.iloc[order[:keep]]
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


@once
def _selected(
    evidence: Evidence, scale: Scale, keep: int, rule: Selection, least: float, exclude: tuple[Head, ...]
) -> tuple[Head, ...]:
    """What a stage keeps. Every claim about a discovery goes through its stages again."""
    return tuple(select(scores(evidence, scale), keep, rule=rule, least=least, exclude=exclude))


def lost_by_senders(evidence: Evidence, heads: Sequence[Head], scale: Scale) -> Array:
    """By how much the answer falls on a scale, mean over some senders, by prompt."""
    found: Array = -changes(evidence, scale)[list(heads)].mean(axis=1).to_numpy()
    return found


def reselected(
    evidence: Evidence, scale: Scale, rule: Selection, exclude: Sequence[Head] = (), seed: int = RESAMPLED
) -> list[list[Head]]:
    """Our own selection again, on resampled prompts; the receivers are held. As in a discovery, heads that belong to a
    later group are taken out of what was selected."""
    return [[head for head in chosen if head not in exclude] for chosen in _reselected(evidence, scale, rule, seed)]


@once
def _reselected(evidence: Evidence, scale: Scale, rule: Selection, seed: int) -> tuple[tuple[Head, ...], ...]:
    """The same before any head is taken out; a sentence asks for it at each of its levels."""
    generator = np.random.default_rng(seed)
    table = changes(evidence, scale).sort_index(axis="columns")
    values, strata = table.to_numpy(), np.array(strata_of(evidence, table))
    heads = table.columns.to_frame(index=False)
    keep = evidence.settings["stage"]["keep"]
    found = []
    for _ in range(RESAMPLES):
        drawn = generator.choice(len(table), len(table))
        again = spread(values[drawn], strata[drawn].tolist())
        scored = heads.assign(score=again.mean, se=again.error, freedom=again.freedom)
        found.append(tuple(select(scored, keep, rule=rule, least=LEAST[scale])))
    return tuple(found)
