"""From evidence to the numbers that a rule weighs: one number per resampled unit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.binding.measures import per_example
from rebinding.experiments.circuit.discovery import changes, select
from rebinding.experiments.roles.interchange import group_effects
from rebinding.experiments.tracing.summary import claimable
from rebinding.paper.claim import Claim, margin_of
from rebinding.verdicts import ordering
from rebinding.verdicts.sentences import Part

Array = npt.NDArray[np.float64]
RESAMPLES = 20


def restored(evidence: Evidence, *roles: str) -> Array:
    """What patching the tokens of some roles restores, (place, prompt): (lead - base lead) / (1 - mean base lead).

    A place is a role and a layer. Where the unpatched counterfactual gives the original's answer in every prompt there
    is nothing to restore, and every number is 0.
    """
    rows = leading(evidence)
    tables = []
    for role in roles:
        here = rows[(rows["role"] == role) | (rows["place"] == role)]
        if here.empty:
            raise KeyError(f"no token has the role {role} in this map")
        tables.append(here.assign(gain=(here["lead"] - here["base"]) / room(evidence)))
    return np.concatenate([one.pivot(index="layer", columns="prompt", values="gain").to_numpy() for one in tables])


def leading(evidence: Evidence) -> pd.DataFrame:
    """Whether the original's answer comes out, with a patch and without.

    As published: its logit is the first largest among the original's objects. Where the counterfactual has no answer
    (the asked box is gone) that would be decided by ties, so there the answer has to lead by what counts as a
    difference of logits.
    """
    rows = claimable(evidence).rows
    if rows["counterfactual_margin"].notna().all():
        return rows.assign(lead=rows["hit"].astype(float), base=rows["base_hit"].astype(float))
    least = margin_of("margin")
    leads = {
        name: (rows[column] >= least).astype(float) for name, column in (("lead", "margin"), ("base", "base_margin"))
    }
    return rows.assign(**leads)


def room(evidence: Evidence) -> float:
    """The share of prompts in which there is something to restore; 1 where there is nothing at all."""
    return 1.0 - base(evidence) or 1.0


def base(evidence: Evidence) -> float:
    """How often the unpatched counterfactual gives the original's answer."""
    return float(leading(evidence).groupby("prompt")["base"].first().mean())


def all_layers(evidence: Evidence, place: str) -> pd.DataFrame:
    """The change that patching a token at every layer makes, (prompt, question); questions not asked are left out."""
    rows = evidence.rows
    whole = (rows["first"] == 0) & (rows["last"] == rows["last"].max()) & (rows["place"] == place)
    return rows[whole].pivot(index="prompt", columns="question", values="change").dropna(axis=1)


def of_circuit(evidence: Evidence, name: str, measure: str) -> Array:
    """One measure of one circuit, by prompt; hits are booleans."""
    rows = evidence.rows[evidence.rows["circuit"] == name].sort_values("prompt")
    values = rows[measure].to_numpy(dtype=np.float64)
    return values > 0 if measure == "hit" else values


def of_random(evidence: Evidence, measure: str) -> Array:
    """One measure of the random circuits: (draw, prompt)."""
    names = [name for name in evidence.rows["circuit"].unique() if name.startswith("random ")]
    return np.stack([of_circuit(evidence, name, measure).astype(np.float64) for name in names])


def over_random(claim: Claim, evidence: Evidence) -> Part:
    """Hits of the circuit against those of random ones on the same prompts."""
    mine = of_circuit(evidence, "circuit", "hit").astype(float)
    return partial(ordering, mine, of_random(evidence, "hit"), unit="nested", margin=claim.margin("accuracy"))


def lost(evidence: Evidence, heads: Sequence[tuple[int, int]]) -> Array:
    """By how much of itself the answer's probability falls, mean over some senders, by prompt."""
    rows = evidence.rows[pd.MultiIndex.from_frame(evidence.rows[["layer", "head"]]).isin(list(heads))]
    change = (rows["p_orig"] - rows["p_patch"]) / rows["p_orig"]
    return change.groupby(rows["prompt"]).mean().to_numpy()


def reselected(evidence: Evidence, keep: int, least: float, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Our own selection again, on resampled prompts."""
    generator = np.random.default_rng(seed)
    table = changes(evidence)
    found = []
    for _ in range(RESAMPLES):
        drawn = generator.choice(len(table), len(table))
        again = table.columns.to_frame(index=False).assign(score=table.to_numpy()[drawn].mean(axis=0))
        found.append(select(again, keep, least=least))
    return found


def of_group(evidence: Evidence, group: str, word: str) -> Array:
    """The change of a word's logit when a group gets the counterfactual's attention, by prompt."""
    table = group_effects(evidence)
    return table[table["group"] == group].sort_values("prompt")[word].to_numpy(dtype=np.float64)


@lru_cache(maxsize=8)
def examples(evidence: Evidence) -> pd.DataFrame:
    """All measures of every example; many claims look at one piece of evidence (told apart by identity)."""
    return per_example(evidence)


def shift(evidence: Evidence, condition: str, measure: str) -> Array:
    """One measure of a condition, by example; (draw, example) where the condition has several draws."""
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values(["draw", "prompt", "i", "j"])
    draws = mine["draw"].nunique()
    values = mine[measure].to_numpy(dtype=np.float64).reshape(draws, -1)
    return values[0] if draws == 1 else values


def balanced(evidence: Evidence, condition: str, measure: str) -> Array:
    """One number per balanced set: the mean over one example of every ordered pair of slots, so that what one order
    adds and the other takes away cancels within each unit."""
    table = examples(evidence)
    mine = table[table["condition"] == condition].sort_values("prompt")
    by_pair = [rows[measure].to_numpy(dtype=np.float64) for _, rows in mine.groupby(["i", "j"])]
    sets = min(map(len, by_pair))
    return np.mean([values[:sets] for values in by_pair], axis=0)


def correct(evidence: Evidence, condition: str) -> npt.NDArray[np.bool_]:
    """Whether the unedited model answers, by example."""
    table = examples(evidence)
    return table[table["condition"] == condition].sort_values(["draw", "prompt", "i", "j"])["correct"].to_numpy()


def difference_of_correct(values: Array, right: npt.NDArray[np.bool_]) -> Array:
    """The mean over correct examples less the mean over all, as one number per example whose mean is that difference
    and whose spread is that of the difference (its linear part in every example)."""
    chosen, every = values[right].mean(), values.mean()
    return (chosen - every) + right / right.mean() * (values - chosen) - (values - every)
