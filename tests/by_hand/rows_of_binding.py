"""What the rows of section 5 weigh, from the attention and logits of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.attention.looks import Looks
from rebinding.experiments.binding.request import Exchange, Shifts
from rebinding.study.binding import FIRST_PAIR
from tests.by_hand.grounds import Grounds

Array: TypeAlias = npt.NDArray[np.float64]
Estimates: TypeAlias = Callable[[Grounds], Mapping[str, float]]
SWITCHES = ("switch", "switch_example")
KEYS = ("k_both", "k_box", "k_object")


def examples(request: Any, rows: pd.DataFrame, condition: str) -> pd.DataFrame:
    """dR, dlogit, switches, and whether the model is right, of every example: a line each."""
    read: tuple[str, ...] = ("box", "object")
    if getattr(request, "read", "both") == "shifted":
        read = next(one.kinds for one in request.conditions if one.name == condition)
    found = []
    for case, heads in rows[rows["condition"] == condition].groupby(["draw", "prompt", "i", "j"]):
        i, j = (int(str(one)) for one in case[2:])
        told: dict[str, float] = {}
        mass = {w: np.sum([_three(heads, f"{w}_{kind}") for kind in read], axis=0) for w in ("before", "after")}
        ratio = {w: np.log(m[:, j] + 1e-9) - np.log(m[:, i] + 1e-9) for w, m in mass.items()}
        logit = {w: _three(heads, f"{w}_logit")[0] for w in mass}
        told["dR"] = float((ratio["after"] - ratio["before"]).mean())
        told["dlogit"] = logit["after"][j] - logit["after"][i] - logit["before"][j] + logit["before"][i]
        told["switch"] = ((mass["before"].argmax(1) == i) & (mass["after"].argmax(1) == j)).mean()
        together = {w: m.sum(0).argmax() for w, m in mass.items()}
        told["switch_example"] = float(together["before"] == i and together["after"] == j)
        told["correct"] = float(heads["correct"].iloc[0])
        found.append(dict(zip(("draw", "prompt", "i", "j"), case, strict=True)) | told)
    return pd.DataFrame(found)


def _three(heads: pd.DataFrame, name: str) -> Array:
    """A column of every slot (head, slot)."""
    return heads[[f"{name}_{slot}" for slot in range(3)]].to_numpy(float)


def of(asked: tuple[Any, pd.DataFrame], condition: str, measure: str) -> Array:
    """One measure of a condition (draw, unit); a unit is one example of every ordered pair of slots."""
    table = examples(*asked, condition)
    by_pair = [one.pivot(index="draw", columns="prompt", values=measure) for _, one in table.groupby(["i", "j"])]
    pairs = [one.to_numpy() for one in by_pair]
    least = min(one.shape[1] for one in pairs)
    found: Array = np.mean([one[:, :least] for one in pairs], axis=0)
    return found


def size(values: Array) -> Array:
    found: Array = values * np.sign(values.mean(axis=-1, keepdims=True))
    return found


def main(g: Grounds) -> tuple[Any, pd.DataFrame]:
    """The shifts of the row's own procedure."""
    return g.one(Shifts, variation=g.way.like)


def random_of(asked: tuple[Any, pd.DataFrame]) -> list[str]:
    return [one.name for one in asked[0].conditions if one.vectors != "binding"]


def table(g: Grounds) -> Mapping[str, float]:
    _, _, condition, measure = g.claim.id.split(".")
    asked = main(g)
    conditions = random_of(asked) if condition == "random" else [condition]
    measures = SWITCHES if measure == "switch" else (measure,)
    found = {f"{one} {how}": float(of(asked, one, how).mean()) for one in conditions for how in measures}
    return found if len(found) > 1 else {"": next(iter(found.values()))}


def q_redirects(g: Grounds) -> Mapping[str, float]:
    return {name: of(main(g), "q", name).mean() for name in g.claim.metrics}


def k_redirects(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "k_both", "dR").mean()}


def box_keys(g: Grounds) -> Mapping[str, float]:
    return {name: of(main(g), "k_box", name).mean() for name in ("dR", "dlogit")}


def object_keys(g: Grounds) -> Mapping[str, float]:
    moved = {name: of(main(g), name, "dlogit").mean() for name in ("k_object", "k_box", "q", "k_both", "qk")}
    found = {f"not exceeded by {one}": moved["k_object"] - moved[one] for one in ("q", "k_both", "qk")}
    return found | {"over k_box": moved["k_object"] - moved["k_box"]}


def cancels(g: Grounds) -> Mapping[str, float]:
    asked = main(g)
    q, k, qk = (of(asked, name, "dR").mean() for name in ("q", "k_both", "qk"))
    found = {"less attention than q": q - qk, "less attention than k_both": k - qk}
    found |= {"attention by q": q, "attention by k_both": k}
    for control in random_of(asked):
        for turned in SWITCHES:
            for name in ("dR", "dlogit", turned):
                gap = size(of(asked, control, name)).mean() - size(of(asked, "qk", name)).mean()
                found[f"no more than random: {control}, {turned}: {name}"] = gap
    return found


def dominance(g: Grounds) -> Mapping[str, float]:
    q, k, qk = (of(main(g), name, "dR") for name in ("q", "k_both", "qk"))
    return {
        "keys over query": k.mean() - q.mean(),
        "weak query": k.mean() / 2 - size(q).mean(),
        "both together": qk.mean(),
    }


def q_strongest(g: Grounds) -> Mapping[str, float]:
    asked = main(g)
    return {
        f"{name} over {keys}": of(asked, "q", name).mean() - of(asked, keys, name).mean()
        for name in g.claim.metrics
        for keys in KEYS
    }


def both_most(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "k_both", "dR").mean() - of(main(g), "k_object", "dR").mean()}


def signature(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "k_both", "dR").mean() - of(main(g), "q", "dR").mean()}


def correct_only(g: Grounds) -> Mapping[str, float]:
    asked = main(g)
    right = of(asked, "q", "correct")[0] == 1
    found = {"qk dR, still positive": of(asked, "qk", "dR")[0][right].mean()}
    for condition in ("q", "k_both", "qk"):
        for name in g.claim.metrics:
            values = of(asked, condition, name)[0]
            found[f"{condition} {name}, correct against all"] = values[right].mean() - values.mean()
    return found


def mass(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Looks)
    context = rows[rows["token"].str.startswith("context_")]
    return {"": float(context["attention"].sum() / rows.groupby(["prompt", "layer", "head"]).ngroups)}


def interchange(g: Grounds) -> Mapping[str, float]:
    real, means, found = g.one(Exchange), main(g), {}
    for said, condition in (("queries", "q"), ("keys", "k_both")):
        ours = of(real, condition, "dR").mean()
        found[f"{said}: turn"] = ours
        found[f"{said}: turn more than means"] = ours - of(means, condition, "dR").mean()
    return found


def leak(g: Grounds) -> Mapping[str, float]:
    whole, alone = (of(g.one(Shifts, variation=how), "k_both", "dlogit") for how in ("published", "isolated"))
    return {"": whole.mean() - alone.mean()}


def third(g: Grounds) -> Mapping[str, float]:
    asked = g.one(Shifts, variation="third slot")
    assert asked[0].slots != FIRST_PAIR
    return {name: of(asked, name, "dR").mean() for name in ("q", "k_both")}


def spread(g: Grounds) -> Mapping[str, float]:
    asked, found = g.one(Shifts, variation="random directions"), {}
    for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
        random = np.abs(of(asked, control, "dR").mean(axis=1))
        found[name] = (random + g.margin < of(asked, name, "dR").mean()).mean()
    return found


ROWS: Mapping[str, Estimates] = {
    "binding.q_redirects": q_redirects,
    "binding.k_redirects": k_redirects,
    "binding.box_keys_address_only": box_keys,
    "binding.object_keys_read_out": object_keys,
    "binding.qk_cancels": cancels,
    "binding.key_dominance": dominance,
    "binding.q_strongest": q_strongest,
    "binding.both_keys_most": both_most,
    "binding.signature": signature,
    "binding.llama3b_correct_only": correct_only,
    "binding.table": table,
    "beyond.mass": mass,
    "beyond.interchange": interchange,
    "robust.no_kv_leak": leak,
    "robust.third_slot": third,
    "robust.random_directions": spread,
}
