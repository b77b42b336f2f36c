"""Estimates by hand of the rows of section 3: which answer leads after a patch, by layer and prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from claims.test_tracing import ASKED_LABEL_IN_SWAP, OBJECT_MODE, PARTNER_TO_REMAINING
from rebinding.experiments.tracing.request import WIDE, FirstMention, ReadoutDiagnostic, TracingMap
from tests.oracles.by_hand.grounds import Estimates, Grounds

BETWEEN = ("swap_first", "swap_second", "swap_period", "question_box")
FIRST_MENTION = {"context_asked": "context_and_swap", "context_partner": "context_target_box_and_swap_query_box"}
CLEAR = 0.5
"""By how much of a logit an answer has to lead, where it has to lead clearly."""


def leads(rows: pd.DataFrame, conventions: Any, prefix: str = "", clear: bool = False) -> pd.Series:
    """1 where the original's answer comes out, under the row's conventions."""
    columns = ["margin"] if conventions.candidates == "original" else ["margin", "counterfactual_margin"]
    if clear or conventions.lead == "clear" or rows["counterfactual_margin"].isna().any():
        return (rows[[f"{prefix}{column}" for column in columns]].min(axis=1) >= CLEAR).astype(float)
    hit = "hit" if conventions.candidates == "original" else "hit_with_counterfactual"
    return rows[f"{prefix}{hit}"].astype(float)


def room(rows: pd.DataFrame, conventions: Any) -> float:
    """The share of prompts without the original's answer when nothing is patched, where gains are shares of it."""
    base = leads(rows, conventions, "base_").groupby(rows["prompt"]).first().mean()
    return 1.0 if conventions.scale == "raw" or base == 1 else 1 - base


def gains(g: Grounds, rows: pd.DataFrame, role: str) -> pd.DataFrame:
    """(layer, prompt) of a role, from the second layer on."""
    conventions = g.conventions.tracing
    gain = (leads(rows, conventions) - leads(rows, conventions, "base_")) / room(rows, conventions)
    mask = (rows["layer"] > 0) & ((rows["role"] == role) | (rows["place"] == role))
    return rows[mask].assign(gain=gain[mask]).pivot(index="layer", columns="prompt", values="gain")


def places(name: str, *tables: pd.DataFrame) -> dict[str, float]:
    """The mean at every place; a verdict says which place it speaks of."""
    means = np.concatenate([table.mean(axis=1).to_numpy() for table in tables])
    return {f"{name}@{number}": float(mean) for number, mean in enumerate(means)}


def traced(g: Grounds, mode: str) -> pd.DataFrame:
    return g.rows(TracingMap, mode=mode)


def first(tables: list[pd.DataFrame], layers: int) -> pd.Series:
    """By prompt the first layer at which one of these restores anything; one behind the last, where none does."""
    positive = np.logical_or.reduce([table.to_numpy() > 0 for table in tables])
    at = np.where(positive.any(0), tables[0].index.to_numpy()[positive.argmax(0)], layers)
    return pd.Series(at, tables[0].columns)


def last(table: pd.DataFrame) -> pd.Series:
    """By prompt the last such layer; the first of all, where there is none."""
    positive = table.to_numpy() > 0
    at = np.where(positive.any(0), table.index.to_numpy()[::-1][positive[::-1].argmax(0)], 0)
    return pd.Series(at, table.columns)


def largest_share(g: Grounds, holds: pd.Series, *maps: pd.DataFrame) -> float:
    """The share of prompts in which it holds, of those in which there is something to restore in every map."""
    conventions = g.conventions.tracing
    drops = [
        (leads(rows, conventions, "base_").groupby(rows["prompt"]).first() == 0)[holds.index].to_numpy()
        for rows in maps
    ]
    all_drops = np.logical_and.reduce(drops)
    return float(holds.to_numpy()[all_drops].mean()) if all_drops.any() else 0.0


def mention(g: Grounds) -> Mapping[str, float]:
    """What a patch of the context's label restores; controlled, what it adds to the swap's, where the answer has to
    lead clearly."""
    if g.claim.procedure == "published":
        role = "context_asked" if "reference_box" in g.claim.id else "context_partner"
        return places("", gains(g, traced(g, FIRST_MENTION[role]), role))
    rows, conventions = g.rows(FirstMention), g.conventions.tracing
    lead = rows.assign(lead=leads(rows, conventions, clear=True))
    joint, single = (
        lead[lead["patched"] == name].pivot(index="layer", columns="prompt", values="lead") for name in ("both", "swap")
    )
    return places("", (joint - single) / room(rows, conventions))


def passing(g: Grounds, mode: str, edited: str, other_role: str) -> dict[str, float]:
    rows, objects = traced(g, mode), traced(g, OBJECT_MODE)
    end_layer = int(rows["layer"].max()) + 1
    readout = gains(g, rows, "readout")
    arrival = readout.mask(gains(g, objects, "readout") > 0, 0.0)
    by_role = {role: gains(g, rows, role) for role in (other_role, "swap_period", "question_box")}
    between, name = [*by_role.values()], f"{mode}, at two tokens in between"
    tokens = {key: value for role, table in by_role.items() for key, value in places(f"{name}: {role}", table).items()}
    label, arrives = last(gains(g, rows, edited)), first([readout], end_layer)
    return {
        **tokens,
        **places(f"{mode}, at the readout", arrival),
        f"{mode}, readout after the tokens in between": largest_share(g, first(between, end_layer) < arrives, rows),
        f"{mode}, readout after the label": largest_share(g, label < arrives, rows),
    }


def emerge(g: Grounds) -> Mapping[str, float]:
    passed = passing(g, ASKED_LABEL_IN_SWAP, "swap_asked", "swap_partner")
    return passed | passing(g, PARTNER_TO_REMAINING, "swap_partner", "swap_asked")


def direct(g: Grounds) -> Mapping[str, float]:
    rows = traced(g, OBJECT_MODE)
    own_gains = gains(g, rows, "context_partner_object")
    end_layer = int(rows["layer"].max()) + 1
    own, readout = (first([table], end_layer) for table in (own_gains, gains(g, rows, "readout")))
    return {
        **places("its own token", own_gains),
        **places("in between", *(gains(g, rows, role) for role in BETWEEN)),
        "the readout in later layers": largest_share(g, own < readout, rows),
    }


def labels(g: Grounds) -> Mapping[str, float]:
    rows = traced(g, OBJECT_MODE)
    tokens = [f"context_box[{slot}]" for slot in range(g.claim.boxes)] + ["swap_first", "swap_second", "question_box"]
    return places("", *(gains(g, rows, role) for role in tokens))


def payload(g: Grounds) -> Mapping[str, float]:
    maps = [traced(g, mode) for mode in (PARTNER_TO_REMAINING, OBJECT_MODE)]
    boxes, objects = (first([gains(g, table, "readout")], int(table["layer"].max()) + 1) for table in maps)
    return {"": largest_share(g, boxes < objects, *maps)}


def changes_at_place(g: Grounds, place: str, last_layer: int) -> dict[str, pd.Series]:
    """By question, the change by prompt when a token is patched in all layers up to one."""
    rows = g.rows(ReadoutDiagnostic)
    full = rows[(rows["first"] == 0) & (rows["last"] == last_layer) & (rows["place"] == place)]
    return {str(name): part.set_index("prompt")["change"] for name, part in full.groupby("question")}


def means_at_stop_and_readout(g: Grounds) -> tuple[dict[str, float], dict[str, float]]:
    """Mean changes by the swap's full stop in all layers, and by the readout in all, or in all but the last sixth."""
    layers = int(g.rows(ReadoutDiagnostic)["last"].max()) + 1
    last_layer = layers - 1 - (0 if g.conventions.tracing.readout == "every_layer" else max(1, layers // 6))
    tables = changes_at_place(g, "swap_period", layers - 1), changes_at_place(g, "readout", last_layer)
    stop, readout = ({name: float(change.mean()) for name, change in changes.items()} for changes in tables)
    return stop, readout


def estimate_over_period(g: Grounds) -> Mapping[str, float]:
    stop, readout = means_at_stop_and_readout(g)
    return {name: readout[name] - stop[name] for name in stop}


def estimate_ratio_over_period(g: Grounds) -> Mapping[str, float]:
    stop, readout = means_at_stop_and_readout(g)
    return {name: readout[name] / 2 - stop[name] for name in stop}


def local(g: Grounds) -> Mapping[str, float]:
    stop, readout = means_at_stop_and_readout(g)
    estimates = {f"full stop, {name}": value for name, value in stop.items()}
    estimates |= {f"readout, {name}": value for name, value in readout.items()}
    return estimates | {f"more, {name}": readout[name] - stop[name] for name in stop}


THREE: Mapping[str, Estimates] = {
    "reference_box_not_from_context": mention,
    "swap_box_not_from_context": mention,
    "boxes_emerge_after_swap": emerge,
    "object_direct": direct,
    "object_not_through_labels": labels,
    "pointer_before_payload": payload,
    "readout_over_swap_period": estimate_over_period,
    "readout_much_over_swap_period": estimate_ratio_over_period,
    "prefix_effect_local": local,
}
ROWS: Mapping[str, Estimates] = {f"tracing.{name}": estimate for name, estimate in THREE.items()} | {
    f"tracing.{'five' if WIDE == 5 else WIDE}_boxes.{name}": estimate for name, estimate in THREE.items()
}
