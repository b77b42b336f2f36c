"""What the rows on binding IDs weigh that are about other prompts, other tokens, or random directions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.binding.request import FIRST_PAIR, Exchange, Shifts
from rebinding.experiments.swap_labels.request import LabelExchange
from tests.oracles.by_hand.binding_estimates import Estimates, main, of, on_slots
from tests.oracles.by_hand.grounds import Grounds


def mass(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    context = rows[rows["token"].str.startswith("context_")]
    return {"": float(context["attention"].sum() / rows.groupby(["prompt", "layer", "head"]).ngroups)}


def interchange(g: Grounds) -> Mapping[str, float]:
    real, means, found = on_slots(g, g.one(Exchange)), main(g), {}
    for said, condition in (("queries", "q"), ("keys", "k_both")):
        ours = of(real, condition, "dR").mean()
        found[f"{said}: turn"] = ours
        found[f"{said}: turn more than means"] = ours - of(means, condition, "dR").mean()
    return found


def swap_labels(g: Grounds) -> Mapping[str, float]:
    """Means over heads, draws and the prompts that are in some unit: as many of every ordered pair of slots."""
    rows = g.rows(LabelExchange)
    least = int(rows.groupby(["i", "j"])["prompt"].nunique().min())
    rank = rows.groupby(["i", "j"])["prompt"].rank("dense")
    some = rows[rank <= least]
    mass = {w: np.log(some[f"{w}_label_j"] + 1e-9) - np.log(some[f"{w}_label_i"] + 1e-9) for w in ("before", "after")}
    lead = {w: some[f"{w}_logit_j"] - some[f"{w}_logit_i"] for w in mass}
    return {name: float((of["after"] - of["before"]).mean()) for name, of in (("dR", mass), ("dlogit", lead))}


def leak(g: Grounds) -> Mapping[str, float]:
    whole, alone = (of(g.one(Shifts, variation=how), "k_both", "dlogit") for how in ("published", "isolated"))
    return {"": whole.mean() - alone.mean()}


def elsewhere(g: Grounds) -> Mapping[str, float]:
    asked = g.one(Shifts, variation="narrative")
    assert asked[0].prompts.narrative
    assert not any(one.narrative for batch in asked[0].batches for one in batch.slots)
    parts = (("q", "dR"), ("q", "dlogit"), ("k_both", "dR"))
    return {f"{name} {measure}": of(asked, name, measure).mean() for name, measure in parts}


def third(g: Grounds) -> Mapping[str, float]:
    asked = g.one(Shifts, variation="third slot")
    assert asked[0].slots != FIRST_PAIR
    return {name: of(asked, name, "dR").mean() for name in ("q", "k_both")}


def over_random(measure: str) -> Estimates:
    """The share of random directions that move less than the query's shift, and the keys'."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        shifts, found = g.one(Shifts, variation="random directions"), {}
        for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
            random = np.abs(of(shifts, control, measure).mean(axis=1))
            found[name] = (random + g.margin < of(shifts, name, measure).mean()).mean()
        return found

    return estimates


ROWS: Mapping[str, Estimates] = {
    "beyond.mass": mass,
    "beyond.interchange": interchange,
    "beyond.swap_label_keys": swap_labels,
    "beyond.id_not_position": elsewhere,
    "robust.no_kv_leak": leak,
    "robust.third_slot": third,
    "robust.random_directions": over_random("dR"),
    "beyond.random_logits": over_random("dlogit"),
}
