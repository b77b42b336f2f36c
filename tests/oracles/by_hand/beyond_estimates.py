"""Estimates by hand of the rows on binding IDs about other prompts, other tokens, or random directions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rebinding.experiments.attention import AttentionToRoles
from rebinding.experiments.binding.request import FIRST_PAIR, Exchange, Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.tracing.request import StoredState
from tests.oracles.by_hand.binding_estimates import Estimates, main, select_slots, select_values
from tests.oracles.by_hand.grounds import Grounds


def mass(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    context = rows[rows["token"].str.startswith("context_")]
    return {"": float(context["attention"].sum() / rows.groupby(["prompt", "layer", "head"]).ngroups)}


def interchange(g: Grounds) -> Mapping[str, float]:
    real, means, differences = select_slots(g, g.single(Exchange)), main(g), {}
    for name, condition in (("queries", "q"), ("keys", "k_both")):
        actual = select_values(real, condition, "dR").mean()
        differences[f"{name}: turn"] = actual
        differences[f"{name}: turn more than means"] = actual - select_values(means, condition, "dR").mean()
    return differences


def stored(span: str) -> Estimates:
    """The share of prompts whose answer becomes that of the prompt with other objects."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        rows = g.rows(StoredState)
        return {"": float(rows[(rows["donor"] == "objects") & (rows["span"] == span)]["second"].mean())}

    return estimates


def swap_labels(g: Grounds) -> Mapping[str, float]:
    """Means over heads, draws and the prompts that are in some unit: as many of every ordered pair of slots."""
    rows = g.rows(LabelExchange)
    minimum = int(rows.groupby(["i", "j"])["prompt"].nunique().min())
    rank = rows.groupby(["i", "j"])["prompt"].rank("dense")
    balanced = rows[rank <= minimum]
    mass = {
        w: np.log(balanced[f"{w}_label_j"] + 1e-9) - np.log(balanced[f"{w}_label_i"] + 1e-9)
        for w in ("before", "after")
    }
    lead = {w: balanced[f"{w}_logit_j"] - balanced[f"{w}_logit_i"] for w in mass}
    return {
        name: float((column["after"] - column["before"]).mean()) for name, column in (("dR", mass), ("dlogit", lead))
    }


def leak(g: Grounds) -> Mapping[str, float]:
    published, isolated = (
        select_values(g.single(Shifts, variation=variation), "k_both", "dlogit")
        for variation in ("published", "isolated")
    )
    return {"": published.mean() - isolated.mean()}


def estimate_other_prompts(g: Grounds) -> Mapping[str, float]:
    shifts = g.single(Shifts, variation="narrative")
    assert shifts[0].prompts.narrative
    assert not any(slot.narrative for batch in shifts[0].batches for slot in batch.slots)
    parts = (("q", "dR"), ("q", "dlogit"), ("k_both", "dR"))
    return {f"{name} {measure}": select_values(shifts, name, measure).mean() for name, measure in parts}


def third(g: Grounds) -> Mapping[str, float]:
    shifts = g.single(Shifts, variation="third slot")
    assert shifts[0].slots != FIRST_PAIR
    return {name: select_values(shifts, name, "dR").mean() for name in ("q", "k_both")}


def estimate_over_random(measure: str) -> Estimates:
    """The share of random directions that move less than the query's shift, and the keys'."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        shifts, differences = g.single(Shifts, variation="random directions"), {}
        for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
            random = np.abs(select_values(shifts, control, measure).mean(axis=1))
            differences[name] = (random + g.margin < select_values(shifts, name, measure).mean()).mean()
        return differences

    return estimates


ROWS: Mapping[str, Estimates] = {
    "beyond.mass": mass,
    "beyond.interchange": interchange,
    "beyond.state_not_stored": stored("state"),
    "beyond.resolved_at_readout": stored("question"),
    "beyond.swap_label_keys": swap_labels,
    "beyond.id_not_position": estimate_other_prompts,
    "robust.no_kv_leak": leak,
    "robust.third_slot": third,
    "robust.random_directions": estimate_over_random("dR"),
    "beyond.random_logits": estimate_over_random("dlogit"),
}
