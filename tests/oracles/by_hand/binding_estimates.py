"""What the rows of section 5 weigh, from the attention and logits of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.binding.request import Shifts
from tests.oracles.by_hand.grounds import Grounds

Array: TypeAlias = npt.NDArray[np.float64]
Estimates: TypeAlias = Callable[[Grounds], Mapping[str, float]]
SWITCHES = ("switch", "switch_example")
KEYS = ("k_both", "k_box", "k_object")
CORRECT = ("q", "k_both", "qk")
SHIFTS = ("q", *KEYS, "qk")


def examples(request: Any, rows: pd.DataFrame, condition: str) -> pd.DataFrame:
    """dR, dlogit, switches, and whether the model is right, of every example: a line each. dR also with another
    epsilon, and of all heads' attention together."""
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
        for eps in (1e-6, 1e-3):
            turned = [np.log((m[:, j] + eps) / (m[:, i] + eps)).mean() for m in mass.values()]
            told[f"dR {eps}"] = float(turned[1] - turned[0])
        sums = [m.sum(0) + 1e-9 for m in mass.values()]
        told["dR summed"] = float(np.log(sums[1][j] / sums[1][i] / (sums[0][j] / sums[0][i])))
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
    """The shifts of the row's own procedure, of the heads that count."""
    return on_slots(g, g.one(Shifts, variation=g.conventions.like))


def on_slots(g: Grounds, asked: tuple[Any, pd.DataFrame]) -> tuple[Any, pd.DataFrame]:
    """Controlled, without the heads that give the two slots less than a hundredth of their attention."""
    request, rows = asked
    if g.conventions.like == "published":
        return asked
    share = on_two_slots(rows).groupby([rows["layer"], rows["head"]]).mean()
    return request, rows[[share[head] >= 0.01 for head in zip(rows["layer"], rows["head"], strict=True)]]


def on_two_slots(rows: pd.DataFrame) -> pd.Series:
    """How much attention a head had on box and object of slots i and j, line by line."""
    whole, lines = _three(rows, "before_box") + _three(rows, "before_object"), np.arange(len(rows))
    return pd.Series(whole[lines, rows["i"]] + whole[lines, rows["j"]], rows.index)


RELEASED = "as released"
TEXT = {
    "Q+K with the keys of slot i alone": {"qk": "qk_source"},
    "key directions of both kinds": {"k_box": "k_box_pooled", "k_object": "k_object_pooled"},
}
Mean: TypeAlias = Callable[[str, str], Any]
"""A measure of a row of the table (draw, unit), under some convention."""


def in_candidates(g: Grounds, estimate: Callable[[Mean], Mapping[str, float]], *read: str) -> Mapping[str, float]:
    """As released, and as published also as the text has it, where that is another condition for what is read."""
    asked = main(g)

    def under(names: Mapping[str, str]) -> Mapping[str, float]:
        return estimate(lambda condition, measure: of(asked, names.get(condition, condition), measure))

    told = {name: names for name, names in TEXT.items() if set(names) & set(read) and g.conventions.like == "published"}
    if not told:
        return under({})
    found = {name: under(names) for name, names in {RELEASED: {}, **told}.items()}
    return {f"{name}: {part}" if part else name: one for name, parts in found.items() for part, one in parts.items()}


def random_of(asked: tuple[Any, pd.DataFrame]) -> list[str]:
    return [one.name for one in asked[0].conditions if one.vectors != "binding"]


def table(g: Grounds) -> Mapping[str, float]:
    condition, (measure,) = str(g.claim.condition), g.claim.metrics
    conditions = random_of(main(g)) if condition == "random" else [condition]
    measures = SWITCHES if measure == "switch" else (measure,)

    def means(mean: Mean) -> Mapping[str, float]:
        found = {f"{one} {how}": float(mean(one, how).mean()) for one in conditions for how in measures}
        return found if len(found) > 1 else {"": next(iter(found.values()))}

    return in_candidates(g, means, condition)


def q_redirects(g: Grounds) -> Mapping[str, float]:
    return {name: of(main(g), "q", name).mean() for name in g.claim.metrics}


def k_redirects(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "k_both", "dR").mean()}


def box_keys(g: Grounds) -> Mapping[str, float]:
    return in_candidates(g, lambda mean: {name: mean("k_box", name).mean() for name in ("dR", "dlogit")}, "k_box")


def object_keys(g: Grounds) -> Mapping[str, float]:
    def more(mean: Mean) -> Mapping[str, float]:
        most = mean("k_object", "dlogit").mean()
        return {f"over {one}": most - mean(one, "dlogit").mean() for one in ("k_box", "k_both")}

    return in_candidates(g, more, "k_object", "k_box")


def cancels(g: Grounds) -> Mapping[str, float]:
    def parts(mean: Mean) -> Mapping[str, float]:
        q, k, qk = (mean(name, "dR").mean() for name in ("q", "k_both", "qk"))
        found = {"less attention than q": q - qk, "less attention than k_both": k - qk}
        return found | {"attention by q": q, "attention by k_both": k, "attention by both": -qk}

    return in_candidates(g, parts, "qk")


def dominance(g: Grounds) -> Mapping[str, float]:
    def parts(mean: Mean) -> Mapping[str, float]:
        query = size(mean("q", "dR")).mean()
        found = {f"keys over query: {keys}": mean(keys, "dR").mean() - query for keys in KEYS}
        return found | {"both together": mean("qk", "dR").mean()}

    return in_candidates(g, parts, *KEYS, "qk")


def cancels_logit(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "qk", "dlogit").mean()}


def below_half(g: Grounds) -> Mapping[str, float]:
    query = size(of(main(g), "q", "dR")).mean()
    halves = {name: of(main(g), name, "dR").mean() / 2 - query for name in KEYS}
    return {**halves, "": max(halves.values())}


def attended(g: Grounds) -> Mapping[str, float]:
    _, rows = main(g)
    some = rows[(rows["condition"] == "q") & (rows["draw"] == 0)]
    whole = _three(some, "before_box") + _three(some, "before_object")
    return {"": (whole.argmax(axis=1) == some["i"]).mean()}


def q_strongest(g: Grounds) -> Mapping[str, float]:
    def over(mean: Mean) -> Mapping[str, float]:
        return {
            f"{name} over {keys}": mean("q", name).mean() - mean(keys, name).mean()
            for name in g.claim.metrics
            for keys in KEYS
        }

    return in_candidates(g, over, *KEYS)


def both_most(g: Grounds) -> Mapping[str, float]:
    def over(mean: Mean) -> Mapping[str, float]:
        return {"": mean("k_both", "dR").mean() - mean("k_object", "dR").mean()}

    return in_candidates(g, over, "k_object")


def signature(g: Grounds) -> Mapping[str, float]:
    return {"": of(main(g), "k_both", "dR").mean() - of(main(g), "q", "dR").mean()}


def similar(g: Grounds) -> Mapping[str, float]:
    right = of(main(g), "q", "correct")[0] == 1

    def parts(mean: Mean) -> Mapping[str, float]:
        values = {f"{one} {name}": mean(one, name)[0] for one in CORRECT for name in g.claim.metrics}
        return {name: one[right].mean() - one.mean() for name, one in values.items()}

    return in_candidates(g, parts, *CORRECT)


def of_correct(g: Grounds) -> Mapping[str, float]:
    condition, measure = g.claim.condition or "qk", g.claim.metrics[0]
    right = of(main(g), "q", "correct")[0] == 1
    return in_candidates(g, lambda mean: {"": mean(condition, measure)[0][right].mean()}, condition)


def dr_robust(g: Grounds) -> Mapping[str, float]:
    asked = main(g)
    others = ("dR 1e-06", "dR 0.001", "dR summed")
    means = [(of(asked, name, "dR").mean(), [of(asked, name, one).mean() for one in others]) for name in SHIFTS]
    return {"": max(abs(other - own) for own, some in means for other in some)}


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
    "binding.qk_cancels_logit": cancels_logit,
    "binding.query_below_half": below_half,
    "binding.slot_attended": attended,
    "binding.correct_only.similar": similar,
    "binding.correct_only": of_correct,
    "binding.dr_robust": dr_robust,
    "binding.table": table,
}
