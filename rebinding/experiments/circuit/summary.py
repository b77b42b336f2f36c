"""From evidence of section 4.1 to the numbers that a rule weighs: one number per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.contributions import NOTHING
from rebinding.experiments.circuit.random_circuits import heads_to_spare
from rebinding.experiments.circuit.request import Which
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.verdicts.gates import Gate, requirement

Array: TypeAlias = npt.NDArray[Any]
"""Numbers by prompt; hits are booleans."""
ALONE = 0.5
"""Of the model's measure, or of the circuit's."""


def of_circuit(evidence: Evidence, which: Which, measure: str) -> Array:
    """One measure of the full model or the circuit, by prompt; hits are booleans."""
    return _by_prompt(evidence.rows[evidence.rows["which"] == which], measure)


def without_group(evidence: Evidence, group: str, measure: str) -> Array:
    """The same of the circuit less a group; of the circuit itself where it has no such heads."""
    rows = evidence.rows
    here = rows[(rows["which"] == "less") & (rows["group"] == group) & (rows["layer"] < 0)]
    return of_circuit(evidence, "circuit", measure) if here.empty else _by_prompt(here, measure)


def without_head(evidence: Evidence, head: CircuitHead, measure: str) -> Array:
    """The same of the circuit less one head."""
    rows = evidence.rows
    lacks = (rows["group"] == head.group) & (rows["layer"] == head.layer) & (rows["head"] == head.head)
    return _by_prompt(rows[(rows["which"] == "less") & lacks], measure)


def fallen(stream: Evidence) -> Array:
    """By how much the answer's margin falls with another residual stream, by prompt."""
    rows = stream.rows.sort_values("prompt")
    found: Array = (rows["before"] - rows["after"]).to_numpy(dtype=np.float64)
    return found


def of_random(evidence: Evidence, measure: str) -> Array:
    """One measure of the random circuits: (draw, prompt)."""
    rows = evidence.rows[evidence.rows["which"] == "random"]
    return np.stack([_by_prompt(one, measure).astype(np.float64) for _, one in rows.groupby("draw")])


def by_word(values: Array, words: Sequence[str]) -> Array:
    """Of numbers (..., prompt) the means over the prompts that have a word in common: (..., word)."""
    of = np.asarray(words)
    return np.stack([values[..., of == word].mean(axis=-1) for word in dict.fromkeys(words)], axis=-1)


def _by_prompt(rows: pd.DataFrame, measure: str) -> Array:
    values: npt.NDArray[Any] = rows.sort_values("prompt")[measure].to_numpy(dtype=np.float64)
    return values > 0 if measure == "hit" else values


def left(pruning: Evidence, order: int = 0) -> Circuit:
    """The circuit that one walk leaves."""
    return _listed(pruning.rows[(pruning.rows["order"] == order) & ~pruning.rows["removed"]])


def stands_alone(pruning: Evidence) -> bool:
    """Whether the circuit that was to be pruned does the task by itself: with half of the model's own measure."""
    first = pruning.rows[pruning.rows["order"] == 0].iloc[0]
    return bool(first["before"] >= ALONE * first["whole"])


def kept(pruning: Evidence) -> Circuit:
    """What pruning leaves. Of a circuit that does not stand alone everything: what a head is worth to something that
    does nothing is no reason to remove it. So it is where a stage finds nobody at the place where it looks."""
    return left(pruning) if stands_alone(pruning) else _listed(pruning.rows[pruning.rows["order"] == 0])


def _listed(rows: pd.DataFrame) -> Circuit:
    listed = zip(rows["group"], rows["layer"], rows["head"], rows["role"], strict=True)
    return Circuit(tuple(CircuitHead(str(g), int(layer), int(head), str(role)) for g, layer, head, role in listed))


def worth(evidence: Evidence, least: float) -> dict[str, dict[str, Array]]:
    """By head and by set that is gone, for every prompt: a hit with the head less 1 + `least` hits without it. The mean
    is above 0 where the contribution is above `least`.

    Sets beside which less than half of the circuit's own hits remain are left out: what a head is worth to something
    that does nothing says nothing, and by chance any share is soon found.
    """
    rows = evidence.rows.sort_values("prompt", kind="stable")
    tables = rows.groupby(["group", "layer", "head", "role", "gone"], sort=False)[["before", "without"]]
    whole = rows.loc[rows["gone"] == NOTHING, "before"].mean()
    found: dict[str, dict[str, Array]] = {}
    for (group, layer, head, _, gone), table in tables:
        before, without = (table[name].to_numpy(dtype=np.float64) for name in ("before", "without"))
        if gone == NOTHING or before.mean() >= ALONE * whole:
            found.setdefault(f"{group} {layer}.{head}", {})[str(gone)] = before - (1 + least) * without
    return found


def left_by_order(pruning: Evidence) -> list[Circuit]:
    """What each walk leaves, the published order first."""
    return [left(pruning, int(order)) for order in sorted(pruning.rows["order"].unique())]


def others_left(circuit: Circuit, layers: int, all_heads: int) -> Gate:
    """Whether there are other heads to compare with."""
    enough = heads_to_spare(circuit, layers, all_heads // layers)
    told = f"a layer of {all_heads // layers} heads has too few beside the circuit's for random sets of as many"
    return requirement("heads_to_spare", enough, told)
