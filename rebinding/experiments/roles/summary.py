"""Numbers for rules from evidence of section 4.2: one number per pair."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.roles.request import WHOLE_GROUP, WORDS
from rebinding.verdicts.estimates import Array


def effects(evidence: Evidence) -> pd.DataFrame:
    """The change of every word's logit, one column a word, for every pair and patch."""
    rows = evidence.rows.assign(delta=evidence.rows["after"] - evidence.rows["before"])
    index = ["prompt", "answer_slot", "group", "layer", "head"]
    table = rows.pivot(index=index, columns="word", values="delta")
    return table[list(WORDS)].reset_index().rename_axis(columns=None)


@lru_cache(maxsize=8)
def group_effects(evidence: Evidence) -> pd.DataFrame:
    """The same for whole groups only: a row per id and group. If an id is run in both directions, its number is their
    mean, in which a preference for one of the slots cancels. Cached, because many claims use the same evidence."""
    table = effects(evidence)
    groups = table[table["head"] == WHOLE_GROUP]
    return groups.groupby(["prompt", "group"], as_index=False)[list(WORDS)].mean()


def of_random_groups(evidence: Evidence, word: str) -> Array:
    """The change of a word's logit when random groups get the counterfactual's attention, (draw, prompt)."""
    rows = evidence.rows[evidence.rows["word"] == word]
    change = rows.assign(change=rows["after"] - rows["before"])
    by_id = change.groupby(["draw", "prompt"], as_index=False)["change"].mean()
    changes: Array = by_id.pivot(index="draw", columns="prompt", values="change").to_numpy(dtype=np.float64)
    return changes


def of_group(evidence: Evidence, group: str, word: str) -> Array:
    """The change of a word's logit when a group gets the counterfactual's attention, by prompt."""
    table = group_effects(evidence)
    return table[table["group"] == group].sort_values("prompt")[word].to_numpy(dtype=np.float64)


def layer_of_half(evidence: Evidence, group: str, word: str) -> Array:
    """By prompt the layer up to which a group's heads, patched one by one, make half of all that they raise a word's
    logit; NaN where none raises it."""
    table = effects(evidence)
    of_heads = table[(table["group"] == group) & (table["head"] != WHOLE_GROUP)]
    by_layer = of_heads.assign(raised=of_heads[word].clip(lower=0)).pivot_table(
        index="layer", columns="prompt", values="raised", aggfunc="sum"
    )
    total = by_layer.sum()
    reached = by_layer.cumsum() >= total / 2
    return np.asarray(reached.idxmax().where(total > 0), dtype=np.float64)
