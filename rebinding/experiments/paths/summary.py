"""Scores of heads from path patching, and the selection of heads by their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
from warnings import warn

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr

from rebinding.evidence import Evidence, PromptSet
from rebinding.evidence.evidence import cache_by_evidence
from rebinding.experiments.paths.request import (
    PAPER,
    STAGES_BY,
    STATIC_PAIRS,
    STATIC_STAGES,
    Paths,
    Stage,
    request_paths,
    request_static_paths,
)
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import RESAMPLED
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import CircuitConventions
from rebinding.task.designs import Design
from rebinding.task.prompts import Stratum, numbered, spread

Scale: TypeAlias = Literal["probability", "logit"]
"""The scale of a head's score. `probability`: (p_patch - p_orig) / p_orig, as published. `logit`: the drop of the
answer's lead over the other objects. Where the answer is sure (p 0.998), p falls by one per cent only if the lead falls
by two logits, and where p is small noise decides; the lead behaves alike in both cases."""
Selection: TypeAlias = Literal["sure", "negative", "published"]
"""`sure`: scores significantly below `-min_effect`, so that at most one in twenty selected heads is expected to be
there by chance; `negative`: scores below `-min_effect`; `published`: the k lowest, whatever their values."""
MIN_EFFECT: Mapping[Scale, float] = MappingProxyType({"probability": 1e-3, "logit": 0.05})
"""A head that changes the answer's probability by less than a tenth of a per cent, or its lead by less than a twentieth
of a logit (odds by a factor of 1.05), is not selected. A head that sends nothing changes either by rounding, and half
of these changes are drops."""
ERROR = 0.05
TINY = 1e-3
"""Below this probability of the answer, a relative change says more about the denominator than about the head."""
RESAMPLES = 20
Array: TypeAlias = npt.NDArray[np.float64]
"""Not that of `rebinding.verdicts`: discovery imports this file, and evidence does not depend on rules."""


class TinyProbabilities(UserWarning):
    """Scores dominated by prompts on which the model gives the answer next to no probability."""


def scores(evidence: Evidence, scale: Scale = "probability") -> pd.DataFrame:
    """Per head: the mean change over prompts, its standard error within strata, and degrees of freedom."""
    if scale == "probability":
        _warn_of_tiny(evidence.rows)
    return _scored(evidence, scale)


@cache_by_evidence
def _scored(evidence: Evidence, scale: Scale) -> pd.DataFrame:
    change = changes(evidence, scale)
    return estimate_heads(change, strata_of(evidence, change))


def scores_by_head(evidence: Evidence, scale: Scale) -> dict[Head, float]:
    """Every sender's score; the lowest is the largest fall."""
    table = scores(evidence, scale)
    return {(int(layer), int(head)): float(score) for layer, head, score in table[["layer", "head", "score"]].values}


def estimate_heads(change: pd.DataFrame, strata: Sequence[int]) -> pd.DataFrame:
    """Per head, from a table (prompt, head) and the prompts' strata: the mean change, its standard error, and degrees
    of freedom."""
    result = spread(change.to_numpy(), strata)
    columns = {"score": result.mean, "se": result.error, "freedom": result.freedom}
    return pd.DataFrame(columns, index=change.columns).sort_index().reset_index()


def strata_of(evidence: Evidence, change: pd.DataFrame) -> list[int]:
    """The number of each prompt's stratum, in the order of the changes."""
    return numbered(_strata_of(evidence, change))


def _strata_of(evidence: Evidence, change: pd.DataFrame) -> list[Stratum]:
    strata = evidence.rows.groupby("prompt")["stratum"].first().loc[change.index]
    return [tuple(map(int, stratum.split("."))) for stratum in strata]


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
    """The change on a scale: a line for each prompt, a column (layer, head) for each head."""
    rows = evidence.rows
    if scale == "logit":
        value = rows["lead_patch"] - rows["lead_orig"]
    else:
        value = (rows["p_patch"] - rows["p_orig"]) / rows["p_orig"]
    return rows.assign(value=value).pivot(index="prompt", columns=["layer", "head"], values="value")


def select(
    table: pd.DataFrame, top_k: int, *, rule: Selection = "negative", min_effect: float, exclude: Sequence[Head] = ()
) -> list[Head]:
    """The `top_k` most negative heads without those in `exclude`; ties broken by (layer, head).

    Under `negative` a score must lie below `-min_effect`, under `sure` significantly so: one-sided t tests over prompts
    with the spread within strata (a head may serve one order of naming only), at a false discovery rate of 5 % over
    all heads (Benjamini and Hochberg).
    """
    candidates, excluded = table, set(exclude)
    if excluded:
        candidates = table[[head not in excluded for head in zip(table["layer"], table["head"], strict=True)]]
    if rule == "negative":
        candidates = candidates[candidates["score"] < -min_effect]
    elif rule == "sure":
        from scipy.stats import false_discovery_control  # takes half a second to import

        gap = (candidates["score"] + min_effect).to_numpy()
        errors = np.maximum(candidates["se"].to_numpy(), np.finfo(float).tiny)  # without spread: a sign, not 0 / 0
        p_values = stdtr(np.maximum(candidates["freedom"].to_numpy(), 1), gap / errors)
        candidates = candidates[(gap < 0) & (false_discovery_control(p_values) <= ERROR)]
    order = np.lexsort(
        [candidates[name].to_numpy() for name in ("head", "layer", "score")]
    )  # the last is the first key
    best = candidates.iloc[order[:top_k]]
    return [(int(layer), int(head)) for layer, head in zip(best["layer"], best["head"], strict=True)]


@cache_by_evidence
def _selected(
    evidence: Evidence, scale: Scale, top_k: int, rule: Selection, min_effect: float, exclude: tuple[Head, ...]
) -> tuple[Head, ...]:
    """The heads that a stage selects; cached, because every claim about a discovery runs through its stages again."""
    return tuple(select(scores(evidence, scale), top_k, rule=rule, min_effect=min_effect, exclude=exclude))


def lost_by_senders(evidence: Evidence, heads: Sequence[Head], scale: Scale) -> Array:
    """The drop of the answer on a scale, mean over some senders, by prompt."""
    drop: Array = -changes(evidence, scale)[list(heads)].mean(axis=1).to_numpy()
    return drop


def largest_changes(evidence: Evidence, heads: Sequence[Head]) -> Array:
    """By prompt the largest change, as a share of the value, that some senders cause in a receiver."""
    rows = evidence.rows
    chosen = rows[pd.MultiIndex.from_frame(rows[["layer", "head"]]).isin(list(heads))]
    largest: Array = chosen.groupby("prompt")["relative_change"].max().to_numpy()
    return largest


def reselected(
    evidence: Evidence, scale: Scale, rule: Selection, exclude: Sequence[Head] = (), seed: int = RESAMPLED
) -> list[list[Head]]:
    """Repeat our selection on resampled prompts, with the same receivers. As in a discovery, remove heads that belong
    to a later group (`exclude`) from the selection."""
    places, generator = range(len(_changes(evidence, scale))), np.random.default_rng(seed)
    samples = tuple(tuple(generator.choice(places, len(places)).tolist()) for _ in range(RESAMPLES))
    return [_without(heads, exclude) for heads in _selected_on(evidence, scale, rule, samples)]


def selected_on_halves(
    evidence: Evidence, scale: Scale, rule: Selection, exclude: Sequence[Head] = (), seed: int = RESAMPLED
) -> list[tuple[list[Head], list[Head]]]:
    """Our selection on either half of the prompts, which are split at random again and again: repetitions that share
    no prompt, though on half as many. Two resamples share most of theirs and agree more than a true repetition would.
    None of a single prompt.
    """
    n, generator = len(_changes(evidence, scale)), np.random.default_rng(seed)
    splits = [generator.permutation(n).tolist() for _ in range(RESAMPLES if n > 1 else 0)]
    samples = tuple(tuple(half) for split in splits for half in (split[: n // 2], split[n // 2 :]))
    halves = [_without(heads, exclude) for heads in _selected_on(evidence, scale, rule, samples)]
    return list(zip(halves[::2], halves[1::2], strict=True))


def _without(heads: Sequence[Head], exclude: Sequence[Head]) -> list[Head]:
    return [head for head in heads if head not in exclude]


@cache_by_evidence
def _changes(evidence: Evidence, scale: Scale) -> pd.DataFrame:
    return changes(evidence, scale).sort_index(axis="columns")


@cache_by_evidence
def _selected_on(
    evidence: Evidence, scale: Scale, rule: Selection, samples: tuple[tuple[int, ...], ...]
) -> tuple[tuple[Head, ...], ...]:
    """The selection on each sample of places of prompts; cached, because a claim uses it at each of its levels."""
    table = _changes(evidence, scale)
    values, strata = table.to_numpy(), _strata_of(evidence, table)
    heads, top_k = table.columns.to_frame(index=False), evidence.settings["stage"]["top_k"]
    selections = []
    for sample in map(list, samples):
        estimates = spread(values[sample], numbered([strata[place] for place in sample]))
        candidates = heads.assign(score=estimates.mean, se=estimates.error, freedom=estimates.freedom)
        selections.append(tuple(select(candidates, top_k, rule=rule, min_effect=MIN_EFFECT[scale])))
    return tuple(selections)


Ask: TypeAlias = Callable[[Paths], Evidence]


@dataclass(frozen=True)
class Discovery:
    """The circuit, and the evidence of every stage that had receivers."""

    circuit: Circuit
    evidence: dict[str, Evidence]


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    scale: Scale = "logit",
    rule: Selection = "sure",
    min_effect: float | None = None,
    distinct: bool = False,
    extra_settings: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage without receivers gives an empty group.

    With `distinct`, no stage selects a head of an earlier one. As published, a head found in both A and B belongs to B
    (the two act at the same token); other heads may act in several groups, each at its role.
    """
    min_effect = MIN_EFFECT[scale] if min_effect is None else min_effect
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        evidence[stage.group] = score(stage, receivers)
        earlier = tuple(head for heads in groups.values() for head in heads) if distinct else ()
        groups[stage.group] = list(_selected(evidence[stage.group], scale, stage.top_k, rule, min_effect, earlier))
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _is_in_later_group(stages[number + 1 :], groups, stage, (layer, head))
    )
    settings = {
        "stages": [asdict(stage) for stage in stages],
        "scale": scale,
        "rule": rule,
        "min_effect": min_effect,
        "distinct": distinct,
    }
    return Discovery(Circuit(heads, {**settings, **(extra_settings or {})}), evidence)


def _is_in_later_group(stages: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether one of the later `stages` with the same sender role has the head too; the head then belongs to it."""
    return any(later.sender == stage.sender and head in groups[later.group] for later in stages)


def discover_circuit(pairs: PromptSet, conventions: CircuitConventions, ask: Ask) -> Discovery:
    """The circuit that path patching finds; each stage is a request of its own."""
    about = {"design": pairs.design, "noise": pairs.pairing[-1], "prompts": len(pairs.ids)}
    return discover_by(
        lambda stage, heads: ask(request_paths(pairs, stage, heads, conventions)),
        STAGES_BY[conventions.d_received_by[0]],
        scale=conventions.score,
        rule=conventions.select,
        extra_settings=about,
    )


def smallest_fall(discovery: Discovery) -> float | None:
    """The smallest drop of the answer's lead, in logits, among the selected heads; None if there are none."""
    falls = []
    for group, evidence in discovery.evidence.items():
        table = scores(evidence, "logit").set_index(["layer", "head"])["score"]
        falls += [-float(table.loc[head]) for head in discovery.circuit.group(group)]
    return min(falls, default=None)


MakePaths: TypeAlias = Callable[[Stories, Design, Circuit, int], Paths]


def discover_static_circuit(ask: Callable[[MakePaths], Evidence], conventions: CircuitConventions) -> Discovery:
    """Find the four groups of static entity tracking; each stage is a request of its own."""

    def score(stage: Stage, receivers: Sequence[Head]) -> Evidence:
        return ask(
            lambda prompts, design, circuit, n: request_static_paths(
                prompts, design.boxes, stage, receivers, conventions, STATIC_PAIRS
            )
        )

    return discover_by(score, STATIC_STAGES, scale=conventions.score, rule=conventions.select)
