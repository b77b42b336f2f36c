"""Numbers for rules from evidence of section 4.1: one number per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.ablation import UNPRUNED, VariantName
from rebinding.experiments.circuit.request import NOTHING
from rebinding.experiments.random_draws import has_heads_to_spare
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.verdicts.effects import effect, exceeds_random
from rebinding.verdicts.gates import TIMES_THE_FLOOR, Gate, requirement

Array: TypeAlias = npt.NDArray[Any]
"""Numbers by prompt; hits are booleans."""
ALONE = 0.5
"""Half of the model's measure, or of the circuit's: the least for a circuit that works alone."""


def of_circuit(evidence: Evidence, which: VariantName, measure: str) -> Array:
    """One measure of the full model or the circuit, by prompt; hits are booleans."""
    return _by_prompt(evidence.rows[evidence.rows["variant"] == which], measure)


def without_group(evidence: Evidence, group: str, measure: str) -> Array:
    """One measure of the circuit without a group, by prompt; of the circuit itself if it has no such heads."""
    rows = evidence.rows
    chosen = rows[(rows["variant"] == "less") & (rows["group"] == group) & (rows["layer"] < 0)]
    return of_circuit(evidence, "circuit", measure) if chosen.empty else _by_prompt(chosen, measure)


def without_head(evidence: Evidence, head: CircuitHead, measure: str) -> Array:
    """One measure of the circuit without one head, by prompt."""
    rows = evidence.rows
    is_head = (rows["group"] == head.group) & (rows["layer"] == head.layer) & (rows["head"] == head.head)
    return _by_prompt(rows[(rows["variant"] == "less") & is_head], measure)


def margin_drop(stream: Evidence) -> Array:
    """The drop of the answer's margin when the residual stream is replaced, by prompt."""
    rows = stream.rows.sort_values("prompt")
    drop: Array = (rows["before"] - rows["after"]).to_numpy(dtype=np.float64)
    return drop


def of_random(evidence: Evidence, measure: str, size: str = "") -> Array:
    """One measure of the random circuits, of the circuit's size or of `UNPRUNED`: (draw, prompt)."""
    rows = evidence.rows[(evidence.rows["variant"] == "random") & (evidence.rows["group"] == size)]
    return np.stack([_by_prompt(draw, measure).astype(np.float64) for _, draw in rows.groupby("draw")])


def random_sizes(evidence: Evidence) -> dict[str, str]:
    """The sizes that random circuits have, by their names in reasons: the text has the candidate circuit's, and the
    caption suggests that of the pruned one."""
    groups = set(evidence.rows.loc[evidence.rows["variant"] == "random", "group"])
    names = {"random circuits as large as the circuit": "", f"random circuits as large as {UNPRUNED}": UNPRUNED}
    return {name: group for name, group in names.items() if group in groups}


def by_word(values: Array, words: Sequence[str]) -> Array:
    """Means of numbers (..., prompt) over the prompts with the same word: (..., word)."""
    labels = np.asarray(words)
    return np.stack([values[..., labels == word].mean(axis=-1) for word in dict.fromkeys(words)], axis=-1)


def _by_prompt(rows: pd.DataFrame, measure: str) -> Array:
    values: npt.NDArray[Any] = rows.sort_values("prompt")[measure].to_numpy(dtype=np.float64)
    return values > 0 if measure == "hit" else values


def circuit_after_walk(pruning: Evidence, order: int = 0) -> Circuit:
    """The circuit after one walk."""
    return _circuit_of(pruning.rows[(pruning.rows["order"] == order) & ~pruning.rows["removed"]])


def circuit_works_alone(pruning: Evidence) -> bool:
    """Whether the unpruned circuit does the task alone: whether it reaches half of the full model's measure."""
    score, full = scores_before_pruning(pruning)
    return score >= ALONE * full


def scores_before_pruning(pruning: Evidence) -> tuple[float, float]:
    """The score of the unpruned circuit alone, and that of the full model."""
    first = pruning.rows[pruning.rows["order"] == 0].iloc[0]
    return float(first["before"]), float(first["full_model"])


def circuit_after_pruning(pruning: Evidence) -> Circuit:
    """The pruned circuit; the unpruned one if it does not work alone, as when a stage finds no heads at its token. In a
    circuit that does nothing, a small contribution is no reason to remove a head."""
    return (
        circuit_after_walk(pruning)
        if circuit_works_alone(pruning)
        else _circuit_of(pruning.rows[pruning.rows["order"] == 0])
    )


def _circuit_of(rows: pd.DataFrame) -> Circuit:
    heads = zip(rows["group"], rows["layer"], rows["head"], rows["role"], strict=True)
    return Circuit(tuple(CircuitHead(str(g), int(layer), int(head), str(role)) for g, layer, head, role in heads))


def contribution(evidence: Evidence, least: float) -> dict[str, dict[str, Array]]:
    """By head, removed set and prompt: hit with the head - (1 + `least`) * hit without it. The mean is above 0 if the
    contribution is above `least`.

    A removed set that leaves less than half of the circuit's own hits is skipped: a contribution to a circuit that does
    nothing is meaningless, and chance alone makes it large.
    """
    rows = evidence.rows.sort_values("prompt", kind="stable")
    tables = rows.groupby(["group", "layer", "head", "role", "removed_set"], sort=False)[["before", "without"]]
    hits = rows.loc[rows["removed_set"] == NOTHING, "before"].mean()
    result: dict[str, dict[str, Array]] = {}
    for (group, layer, head, _, removed_set), table in tables:
        before, without = (table[name].to_numpy(dtype=np.float64) for name in ("before", "without"))
        if removed_set == NOTHING or before.mean() >= ALONE * hits:
            result.setdefault(f"{group} {layer}.{head}", {})[str(removed_set)] = before - (1 + least) * without
    return result


def circuits_after_walks(pruning: Evidence) -> list[Circuit]:
    """The circuit after each walk, the published order first."""
    return [circuit_after_walk(pruning, int(order)) for order in sorted(pruning.rows["order"].unique())]


def gate_group_acts(evidence: Evidence, floor: float) -> Gate:
    """The gate that a group's heads matter to the answer: without them its margin moves by more than rounding, and by
    more than without random heads of the same layers, as one more draw of which the group may count."""
    full = of_circuit(evidence, "full", "margin")
    change = np.abs(full - of_circuit(evidence, "circuit", "margin"))  # (prompt,)
    verdicts = [effect(change, margin=TIMES_THE_FLOOR * floor)]
    detail = f"without the group the answer's margin moves by {change.mean():.2g} logits, rounding by {floor:.2g}"
    if "random" in set(evidence.rows["variant"]):
        random = np.abs(full - of_random(evidence, "margin"))  # (draw, prompt)
        verdicts.append(exceeds_random(change, random, margin=0.0))
        detail += f", and without random heads of its layers by {random.mean():.2g}"
    alone = {
        f"{layer}.{head}": float(np.abs(full - _by_prompt(rows, "margin")).mean())
        for (layer, head), rows in evidence.rows[evidence.rows["variant"] == "less"].groupby(["layer", "head"])
    }
    strongest = max(alone, key=lambda name: alone[name], default="")
    if strongest and alone[strongest] > change.mean() + TIMES_THE_FLOOR * floor:
        detail += f"; its heads cancel each other: without {strongest} alone it moves by {alone[strongest]:.2g}"
    passed = all(verdict.outcome == "REPLICATED" for verdict in verdicts)
    advice = "both must surely be exceeded: where its heads turn their attention says nothing if nothing depends on it"
    return requirement("group_acts", passed, f"{detail}; {advice}")


def gate_other_heads(circuit: Circuit, heads: Sequence[Head]) -> Gate:
    """The gate that a circuit leaves enough other heads in each layer for random sets of the same size."""
    is_enough = has_heads_to_spare(circuit, heads)
    per_layer = len(heads) // len({layer for layer, _ in heads})
    reason = (
        f"the circuit has too many of the {per_layer} heads of some layer: random sets of other heads, to compare it"
        " with, need at least as many there"
    )
    return requirement("heads_to_spare", is_enough, reason)
