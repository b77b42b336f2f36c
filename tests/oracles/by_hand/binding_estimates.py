"""Estimates by hand of the rows of section 5, and of those about other prompts, other tokens, or random directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Request
from rebinding.experiments.attention import AttentionToRoles
from rebinding.experiments.binding.request import FIRST_PAIR, Exchange, Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.tracing.request import StoredState
from tests.oracles.by_hand.grounds import Estimates, Grounds
from tests.oracles.by_hand.judgements import Judged

Array: TypeAlias = npt.NDArray[np.float64]
SWITCHES = ("switch", "switch_example")
KEYS = ("k_both", "k_box", "k_object")
CORRECT = ("q", "k_both", "qk")
SHIFTS = ("q", *KEYS, "qk")


@dataclass(frozen=True, eq=False)
class Table:
    """The evidence of a request, of some heads."""

    request: Any
    rows: pd.DataFrame


@cache
def examples(table: Table, condition: str) -> pd.DataFrame:
    """dR, dlogit, switches, and whether the model is right, of every example: a line each. dR also with another
    epsilon, and of all heads' attention together."""
    read: tuple[str, ...] = ("box", "object")
    if getattr(table.request, "read", "both") == "shifted":
        read = next(entry.kinds for entry in table.request.conditions if entry.name == condition)
    rows, parts = table.rows, []
    for case, heads in rows[rows["condition"] == condition].groupby(["draw", "prompt", "i", "j"]):
        i, j = (int(str(name)) for name in case[2:])
        measures: dict[str, float] = {}
        mass = {w: np.sum([_three(heads, f"{w}_{kind}") for kind in read], axis=0) for w in ("before", "after")}
        ratio = {w: np.log(m[:, j] + 1e-9) - np.log(m[:, i] + 1e-9) for w, m in mass.items()}
        logit = {w: _three(heads, f"{w}_logit")[0] for w in mass}
        measures["dR"] = float((ratio["after"] - ratio["before"]).mean())
        for eps in (1e-6, 1e-3):
            log_ratios = [np.log((m[:, j] + eps) / (m[:, i] + eps)).mean() for m in mass.values()]
            measures[f"dR {eps}"] = float(log_ratios[1] - log_ratios[0])
        sums = [m.sum(0) + 1e-9 for m in mass.values()]
        measures["dR summed"] = float(np.log(sums[1][j] / sums[1][i] / (sums[0][j] / sums[0][i])))
        measures["dlogit"] = logit["after"][j] - logit["after"][i] - logit["before"][j] + logit["before"][i]
        measures["switch"] = ((mass["before"].argmax(1) == i) & (mass["after"].argmax(1) == j)).mean()
        largest = {w: m.sum(0).argmax() for w, m in mass.items()}
        measures["switch_example"] = float(largest["before"] == i and largest["after"] == j)
        measures["correct"] = float(heads["correct"].iloc[0])
        parts.append(dict(zip(("draw", "prompt", "i", "j"), case, strict=True)) | measures)
    return pd.DataFrame(parts)


def _three(heads: pd.DataFrame, name: str) -> Array:
    """A column of every slot (head, slot)."""
    return heads[[f"{name}_{slot}" for slot in range(3)]].to_numpy(float)


def select_values(table: Table, condition: str, measure: str) -> Array:
    """One measure of a condition (draw, unit); a unit is one example of every ordered pair of slots."""
    by_pair = examples(table, condition).groupby(["i", "j"])
    pairs = [part.pivot(index="draw", columns="prompt", values=measure).to_numpy() for _, part in by_pair]
    minimum = min(pair_values.shape[1] for pair_values in pairs)
    averages: Array = np.mean([pair_values[:, :minimum] for pair_values in pairs], axis=0)
    return averages


def main(g: Grounds) -> Table:
    """The shifts of the row's own procedure, of the heads that count."""
    return select_slots(g, Shifts, variation=g.conventions.like)


def select_slots(g: Grounds, kind: type[Request], **options: Any) -> Table:
    """Controlled, without the heads that give the two slots less than a hundredth of their attention."""
    return table_of(g.judged, g.single(kind, **options)[0], g.conventions.like == "published")


def all_heads(g: Grounds, variation: str) -> Table:
    return table_of(g.judged, g.single(Shifts, variation=variation)[0], True)


@cache
def table_of(judged: Judged, request: Any, has_all_heads: bool) -> Table:
    rows = judged.evidence_by_request[request].rows
    if has_all_heads:
        return Table(request, rows)
    share = select_two_slots(rows).groupby([rows["layer"], rows["head"]]).mean()
    return Table(request, rows[[share[head] >= 0.01 for head in zip(rows["layer"], rows["head"], strict=True)]])


def select_two_slots(rows: pd.DataFrame) -> pd.Series:
    """How much attention a head had on box and object of slots i and j, line by line."""
    full, lines = _three(rows, "before_box") + _three(rows, "before_object"), np.arange(len(rows))
    return pd.Series(full[lines, rows["i"]] + full[lines, rows["j"]], rows.index)


RELEASED = "as released"
TEXT = {
    "Q+K with the keys of slot i alone": {"qk": "qk_source"},
    "key directions of both kinds": {"k_box": "k_box_pooled", "k_object": "k_object_pooled"},
}
Mean: TypeAlias = Callable[[str, str], Any]
"""A measure of a row of the table (draw, unit), under some convention."""


def estimate_candidates(g: Grounds, estimate: Callable[[Mean], Mapping[str, float]], *read: str) -> Mapping[str, float]:
    """As released, and as published also as the text has it, where that is another condition for what is read."""
    table = main(g)

    def under(names: Mapping[str, str]) -> Mapping[str, float]:
        return estimate(lambda condition, measure: select_values(table, names.get(condition, condition), measure))

    variants = {
        name: names for name, names in TEXT.items() if set(names) & set(read) and g.conventions.like == "published"
    }
    if not variants:
        return under({})
    estimates = {name: under(names) for name, names in {RELEASED: {}, **variants}.items()}
    return {
        f"{name}: {part}" if part else name: value for name, parts in estimates.items() for part, value in parts.items()
    }


def random_conditions(table: Table) -> list[str]:
    return [condition.name for condition in table.request.conditions if condition.vectors != "binding"]


def printed_table(g: Grounds) -> Mapping[str, float]:
    condition, (measure,) = str(g.claim.condition), g.claim.metrics
    conditions = random_conditions(main(g)) if condition == "random" else [condition]
    measures = SWITCHES if measure == "switch" else (measure,)

    def means(mean: Mean) -> Mapping[str, float]:
        means = {
            f"{condition} {measure}": float(mean(condition, measure).mean())
            for condition in conditions
            for measure in measures
        }
        return means if len(means) > 1 else {"": next(iter(means.values()))}

    return estimate_candidates(g, means, condition)


def average(g: Grounds, condition: str, measure: str = "dR") -> float:
    return float(select_values(main(g), condition, measure).mean())


def box_keys(g: Grounds) -> Mapping[str, float]:
    return estimate_candidates(g, lambda mean: {name: mean("k_box", name).mean() for name in ("dR", "dlogit")}, "k_box")


def object_keys(g: Grounds) -> Mapping[str, float]:
    def estimate_object_over_others(mean: Mean) -> Mapping[str, float]:
        object_mean = mean("k_object", "dlogit").mean()
        return {
            f"over {condition}": object_mean - mean(condition, "dlogit").mean() for condition in ("k_box", "k_both")
        }

    return estimate_candidates(g, estimate_object_over_others, "k_object", "k_box")


def matching_parts(g: Grounds) -> Mapping[str, float]:
    q, k, qk = (average(g, name) for name in ("q", "k_both", "qk"))
    parts = {"attention by q": q, "attention by k_both": k}
    for name, single in (("q", q), ("k_both", k)):
        parts |= {
            f"less than half of {name} is left": single / 2 - qk,
            f"little is left toward slot j: quarter: of {name}": single / 4 - qk,
            f"little is left toward slot i: quarter: of {name}": single / 4 + qk,
        }
    return parts | {"little is left toward slot j: margin": -qk, "little is left toward slot i: margin": qk}


def dominance_parts(g: Grounds) -> Mapping[str, float]:
    q, k, qk = (average(g, name) for name in ("q", "k_both", "qk"))
    return {
        "keys over query": k - q,
        "keys over query, reversed": k + q,
        "query below half": k / 2 - q,
        "query below half, reversed": k / 2 + q,
        "both together": qk,
        "more than half remains": qk - k / 2,
    }


def either_signature(g: Grounds) -> Mapping[str, float]:
    """A row on one signature also judges the parts of the other."""
    return {**matching_parts(g), **dominance_parts(g)}


def attended(g: Grounds) -> Mapping[str, float]:
    rows = main(g).rows
    query_rows = rows[(rows["condition"] == "q") & (rows["draw"] == 0)]
    full = _three(query_rows, "before_box") + _three(query_rows, "before_object")
    return {"": (full.argmax(axis=1) == query_rows["i"]).mean()}


def q_strongest(g: Grounds) -> Mapping[str, float]:
    def compare_means(mean: Mean) -> Mapping[str, float]:
        return {
            f"{name} over {keys}": mean("q", name).mean() - mean(keys, name).mean()
            for name in g.claim.metrics
            for keys in KEYS
        }

    return estimate_candidates(g, compare_means, *KEYS)


def estimate_both_largest(g: Grounds) -> Mapping[str, float]:
    def compare_means(mean: Mean) -> Mapping[str, float]:
        both = mean("k_both", "dR").mean()
        return {f"over {keys}": both - mean(keys, "dR").mean() for keys in ("k_box", "k_object")}

    return estimate_candidates(g, compare_means, "k_both", "k_box", "k_object")


def reach_the_answer(g: Grounds) -> Mapping[str, float]:
    """What a shift does to the answer, less what each random control does."""
    condition = str(g.claim.condition)

    def means(mean: Mean) -> Mapping[str, float]:
        moved = mean(condition, "dlogit").mean()
        differences = {name: float(moved - mean(name, "dlogit").mean()) for name in random_conditions(main(g))}
        return differences if len(differences) > 1 else {"": next(iter(differences.values()))}

    return estimate_candidates(g, means, condition)


def similar(g: Grounds) -> Mapping[str, float]:
    right = select_values(main(g), "q", "correct")[0] == 1

    def parts(mean: Mean) -> Mapping[str, float]:
        values = {f"{group} {name}": mean(group, name)[0] for group in CORRECT for name in g.claim.metrics}
        return {name: value[right].mean() - value.mean() for name, value in values.items()}

    return estimate_candidates(g, parts, *CORRECT)


def estimate_lead_of_keys(g: Grounds) -> Mapping[str, float]:
    right = select_values(main(g), "q", "correct")[0] == 1

    def parts(mean: Mean) -> Mapping[str, float]:
        query, keys = (mean(condition, "dR")[0][right].mean() for condition in ("q", "k_both"))
        return {"keys over the query": keys - query, "keys over the query's opposite": keys + query}

    return estimate_candidates(g, parts, "q", "k_both")


def estimate_correct_prompts(g: Grounds) -> Mapping[str, float]:
    condition, measure = g.claim.condition or "qk", g.claim.metrics[0]
    right = select_values(main(g), "q", "correct")[0] == 1
    return estimate_candidates(g, lambda mean: {"": mean(condition, measure)[0][right].mean()}, condition)


def dr_robust(g: Grounds) -> Mapping[str, float]:
    table = main(g)
    variants = ("dR 1e-06", "dR 0.001", "dR summed")
    means = [
        (
            select_values(table, name, "dR").mean(),
            [select_values(table, name, variant).mean() for variant in variants],
        )
        for name in SHIFTS
    ]
    return {"": max(abs(alternative - mean) for mean, alternatives in means for alternative in alternatives)}


def mass(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    context = rows[rows["token"].str.startswith("context_")]
    return {"": float(context["attention"].sum() / rows.groupby(["prompt", "layer", "head"]).ngroups)}


def interchange(g: Grounds) -> Mapping[str, float]:
    real, means, differences = select_slots(g, Exchange), main(g), {}
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
        select_values(all_heads(g, variation), "k_both", "dlogit") for variation in ("published", "isolated")
    )
    return {"": published.mean() - isolated.mean()}


def estimate_other_prompts(g: Grounds) -> Mapping[str, float]:
    shifts = all_heads(g, "narrative")
    assert shifts.request.prompts.narrative
    assert not any(slot.narrative for batch in shifts.request.batches for slot in batch.slots)
    parts = (("q", "dR"), ("q", "dlogit"), ("k_both", "dR"))
    return {f"{name} {measure}": select_values(shifts, name, measure).mean() for name, measure in parts}


def third(g: Grounds) -> Mapping[str, float]:
    shifts = all_heads(g, "third slot")
    assert shifts.request.slots != FIRST_PAIR
    return {name: select_values(shifts, name, "dR").mean() for name in ("q", "k_both")}


def estimate_over_random(measure: str) -> Estimates:
    """The share of random directions that move less than the query's shift, and the keys'."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        shifts, differences = all_heads(g, "random directions"), {}
        for name, control in (("q", "matched_q"), ("k_both", "matched_k")):
            random = np.abs(select_values(shifts, control, measure).mean(axis=1))
            differences[name] = (random + g.margin < select_values(shifts, name, measure).mean()).mean()
        return differences

    return estimates


ROWS: Mapping[str, Estimates] = {
    "binding.q_redirects": lambda g: {name: average(g, "q", name) for name in g.claim.metrics},
    "binding.k_redirects": lambda g: {"": average(g, "k_both")},
    "binding.box_keys_address_only": box_keys,
    "binding.object_keys_read_out": object_keys,
    "binding.qk_cancels": either_signature,
    "binding.key_dominance": either_signature,
    "binding.q_strongest": q_strongest,
    "binding.both_keys_most": estimate_both_largest,
    "binding.shifts_reach_the_answer": reach_the_answer,
    "binding.signature": lambda g: {"": average(g, "k_both") - average(g, "q")},
    "binding.qk_cancels_logit": lambda g: {"": average(g, "qk", "dlogit")},
    "binding.slot_attended": attended,
    "binding.correct_only.similar": similar,
    "binding.correct_only.keys_lead": estimate_lead_of_keys,
    "binding.correct_only": estimate_correct_prompts,
    "binding.dr_robust": dr_robust,
    "binding.table": printed_table,
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
