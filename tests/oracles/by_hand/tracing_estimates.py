"""What the rows of section 3 weigh: which answer leads after a patch, by layer and prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from claims.test_tracing import OBJECT, PARTNER_TO_REMAINING, SWAP_ASKED
from rebinding.experiments.tracing.request import WIDE, FirstMention, ReadoutDiagnostic, TracingMap
from tests.oracles.by_hand.binding_estimates import Estimates
from tests.oracles.by_hand.grounds import Grounds

BETWEEN = ("swap_first", "swap_second", "swap_period", "question_box")
CLEAR = 0.5
"""By how much of a logit an answer has to lead, where it has to lead clearly."""


def leads(rows: pd.DataFrame, conventions: Any, prefix: str = "", clear: bool = False) -> pd.Series:
    """1 where the original's answer comes out, under the row's conventions."""
    others = ["margin"] if conventions.candidates == "original" else ["margin", "counterfactual_margin"]
    if clear or conventions.lead == "clear" or rows["counterfactual_margin"].isna().any():
        return (rows[[f"{prefix}{one}" for one in others]].min(axis=1) >= CLEAR).astype(float)
    hit = "hit" if conventions.candidates == "original" else "hit_with_counterfactual"
    return rows[f"{prefix}{hit}"].astype(float)


def room(rows: pd.DataFrame, conventions: Any) -> float:
    """The share of prompts without the original's answer when nothing is patched, where gains are shares of it."""
    base = leads(rows, conventions, "base_").groupby(rows["prompt"]).first().mean()
    return 1.0 if conventions.scale == "raw" or base == 1 else 1 - base


def gains(g: Grounds, rows: pd.DataFrame, role: str) -> pd.DataFrame:
    """(layer, prompt) of a role, from the second layer on."""
    conventions = g.conventions.tracing
    more = (leads(rows, conventions) - leads(rows, conventions, "base_")) / room(rows, conventions)
    here = (rows["layer"] > 0) & ((rows["role"] == role) | (rows["place"] == role))
    return rows[here].assign(gain=more[here]).pivot(index="layer", columns="prompt", values="gain")


def places(name: str, *tables: pd.DataFrame) -> dict[str, float]:
    """The mean at every place; a verdict says which place it speaks of."""
    means = np.concatenate([one.mean(axis=1).to_numpy() for one in tables])
    return {f"{name}@{number}": float(mean) for number, mean in enumerate(means)}


def traced(g: Grounds, mode: str) -> pd.DataFrame:
    return g.rows(TracingMap, mode=mode)


def first(tables: list[pd.DataFrame], layers: int) -> pd.Series:
    """By prompt the first layer at which one of these restores anything; one behind the last, where none does."""
    found = np.logical_or.reduce([one.to_numpy() > 0 for one in tables])
    at = np.where(found.any(0), tables[0].index.to_numpy()[found.argmax(0)], layers)
    return pd.Series(at, tables[0].columns)


def last(table: pd.DataFrame) -> pd.Series:
    """By prompt the last such layer; the first of all, where there is none."""
    found = table.to_numpy() > 0
    at = np.where(found.any(0), table.index.to_numpy()[::-1][found[::-1].argmax(0)], 0)
    return pd.Series(at, table.columns)


def most(g: Grounds, holds: pd.Series, *maps: pd.DataFrame) -> float:
    """The share of prompts in which it holds, of those in which there is something to restore in every map."""
    conventions = g.conventions.tracing
    lost = [
        (leads(rows, conventions, "base_").groupby(rows["prompt"]).first() == 0)[holds.index].to_numpy()
        for rows in maps
    ]
    there = np.logical_and.reduce(lost)
    return float(holds.to_numpy()[there].mean()) if there.any() else 0.0


def mention(g: Grounds) -> Mapping[str, float]:
    """What the context's label adds to the swap's; the answer has to lead clearly."""
    rows, conventions = g.rows(FirstMention), g.conventions.tracing
    lead = rows.assign(lead=leads(rows, conventions, clear=True))
    both, alone = (
        lead[lead["patched"] == name].pivot(index="layer", columns="prompt", values="lead") for name in ("both", "swap")
    )
    return places("", (both - alone) / room(rows, conventions))


def passing(g: Grounds, mode: str, edited: str, other: str) -> dict[str, float]:
    rows, things = traced(g, mode), traced(g, OBJECT)
    behind = int(rows["layer"].max()) + 1
    readout = gains(g, rows, "readout")
    arrived = readout.mask(gains(g, things, "readout") > 0, 0.0)
    between = [gains(g, rows, role) for role in (other, "swap_period", "question_box")]
    label, arrives = last(gains(g, rows, edited)), first([readout], behind)
    return {
        **places(f"{mode}, in between", *between),
        **places(f"{mode}, at the readout", arrived),
        f"{mode}, readout after the tokens in between": most(g, first(between, behind) < arrives, rows),
        f"{mode}, readout after the label": most(g, label < arrives, rows),
    }


def emerge(g: Grounds) -> Mapping[str, float]:
    asked = passing(g, SWAP_ASKED, "swap_asked", "swap_partner")
    return asked | passing(g, PARTNER_TO_REMAINING, "swap_partner", "swap_asked")


def direct(g: Grounds) -> Mapping[str, float]:
    rows = traced(g, OBJECT)
    own = gains(g, rows, "context_partner_object")
    readout = first([gains(g, rows, "readout")], int(rows["layer"].max()) + 1)
    return {
        **places("its own token", own),
        **places("in between", *(gains(g, rows, role) for role in BETWEEN)),
        "the readout in later layers": most(g, last(own) < readout, rows),
    }


def labels(g: Grounds) -> Mapping[str, float]:
    rows = traced(g, OBJECT)
    named = [f"context_box[{slot}]" for slot in range(g.claim.boxes)] + ["swap_first", "swap_second", "question_box"]
    return places("", *(gains(g, rows, role) for role in named))


def payload(g: Grounds) -> Mapping[str, float]:
    maps = [traced(g, mode) for mode in (PARTNER_TO_REMAINING, OBJECT)]
    boxes, things = (first([gains(g, one, "readout")], int(one["layer"].max()) + 1) for one in maps)
    return {"": most(g, boxes < things, *maps)}


def moved(g: Grounds, place: str, until: int) -> dict[str, pd.Series]:
    """By question, the change by prompt when a token is patched in all layers up to one."""
    rows = g.rows(ReadoutDiagnostic)
    whole = rows[(rows["first"] == 0) & (rows["last"] == until) & (rows["place"] == place)]
    return {str(name): one.set_index("prompt")["change"] for name, one in whole.groupby("question")}


def both(g: Grounds) -> tuple[dict[str, float], dict[str, float]]:
    """Mean changes by the swap's end in all layers, and by the readout in all, or in all but the last sixth."""
    layers = int(g.rows(ReadoutDiagnostic)["last"].max()) + 1
    until = layers - 1 - (0 if g.conventions.tracing.readout == "every_layer" else max(1, layers // 6))
    told = moved(g, "swap_period", layers - 1), moved(g, "readout", until)
    stop, readout = ({name: float(one.mean()) for name, one in some.items()} for some in told)
    return stop, readout


def over_period(g: Grounds) -> Mapping[str, float]:
    stop, readout = both(g)
    return {name: readout[name] - stop[name] for name in stop}


def much_over_period(g: Grounds) -> Mapping[str, float]:
    stop, readout = both(g)
    return {name: readout[name] / 2 - stop[name] for name in stop}


def local(g: Grounds) -> Mapping[str, float]:
    stop, readout = both(g)
    found = {f"full stop, {name}": value for name, value in stop.items()}
    found |= {f"readout, {name}": value for name, value in readout.items()}
    return found | {f"more, {name}": readout[name] - stop[name] for name in stop}


THREE: Mapping[str, Estimates] = {
    "reference_box_not_from_context": mention,
    "swap_box_not_from_context": mention,
    "boxes_emerge_after_swap": emerge,
    "object_direct": direct,
    "object_not_through_labels": labels,
    "pointer_before_payload": payload,
    "readout_over_swap_period": over_period,
    "readout_much_over_swap_period": much_over_period,
    "prefix_effect_local": local,
}
ROWS: Mapping[str, Estimates] = {f"tracing.{name}": one for name, one in THREE.items()} | {
    f"tracing.{'five' if WIDE == 5 else WIDE}_boxes.{name}": one for name, one in THREE.items()
}
