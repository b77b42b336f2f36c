"""A head's share of attention on the slots that are compared, and how often slot i leads, before any edit.

dR is a mean over heads of log ratios, so a head with hardly any attention on the slots weighs as much as any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.binding.directions import KINDS
from rebinding.experiments.binding.summary import masses
from rebinding.paper.circuit import Head


@lru_cache(maxsize=16)
def attention_on_slots(evidence: Evidence) -> pd.DataFrame:
    """By head, mean over all examples: `share`, its attention on box and object of slots i and j, and `leads`, whether
    slot i has the most attention of all slots."""
    table = _unedited(evidence)
    return table.groupby(["layer", "head"])[["share", "leads"]].mean().reset_index()


def share_of_examples(evidence: Evidence) -> float:
    """The share of examples in which slot i leads in the attention of all heads together."""
    rows = _unedited(evidence)
    slots = [f"slot_{slot}" for slot in range(int(evidence.settings["slots"]))]
    examples = rows.groupby(["prompt", "i", "j"], sort=False)[slots].sum()
    leading = examples.to_numpy().argmax(axis=1)
    return float((leading == examples.index.get_level_values("i")).mean())


def _unedited(evidence: Evidence) -> pd.DataFrame:
    """A row per example and head, before any edit: the same in every condition and draw."""
    all_rows = evidence.rows
    rows = all_rows[
        (all_rows["condition"] == all_rows["condition"].iloc[0]) & (all_rows["draw"] == all_rows["draw"].iloc[0])
    ]
    mass = masses(replace(evidence, rows=rows), "before", KINDS)  # (row, slot)
    places, i, j = np.arange(len(rows)), rows["i"].to_numpy(), rows["j"].to_numpy()
    table: pd.DataFrame = rows[["prompt", "i", "j", "layer", "head"]].assign(
        share=mass[places, i] + mass[places, j],
        leads=mass.argmax(axis=1) == i,
        **{f"slot_{slot}": mass[:, slot] for slot in range(mass.shape[1])},
    )
    return table


@lru_cache(maxsize=16)
def with_heads(evidence: Evidence, heads: frozenset[Head]) -> Evidence:
    """The same evidence of these heads alone."""
    return replace(evidence, rows=_of_heads(evidence.rows, heads))


def _of_heads(rows: pd.DataFrame, heads: Collection[Head]) -> pd.DataFrame:
    names = zip(rows["layer"], rows["head"], strict=True)
    return rows[[name in heads for name in names]].reset_index(drop=True)
