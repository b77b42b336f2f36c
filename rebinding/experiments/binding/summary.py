"""The measures of section 5, computed from the evidence.

With M_k the attention of a head from the readout to the tokens of slot k, summed over the kinds of the read-out set,

    R = ln(M_j + e) - ln(M_i + e)        dR = R after - R before        dlogit = [z(O_j) - z(O_i)] after - before

and a head *switches* if most of its attention is on slot i before and on slot j after (ties go to the lower slot). As
published, dR and switch are computed per head and then averaged, so a head with hardly any attention on the slots
weighs as much as the others; `dR_summed` and `switch_example` sum the attention over heads first.

The request names the read-out set: box and object for all conditions, or, as published, the tokens that the condition
shifts (`readout="tied"`), so that rows of the table are read at different tokens.

Beside them: a head's share of attention on the slots that are compared, and how often slot i leads, before any edit.

dR is a mean over heads of log ratios, so a head with hardly any attention on the slots weighs as much as any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence, EvidenceError
from rebinding.experiments.binding.directions import KINDS, KeyKind
from rebinding.paper.circuit import Head
from rebinding.paper.procedure import BindingConventions
from rebinding.verdicts import require, slot_mass
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.gates import LEAST_MASS

ReadoutKinds: TypeAlias = Sequence[KeyKind] | Literal["tied"]
When: TypeAlias = Literal["before", "after"]
WHEN: tuple[When, When] = ("before", "after")
MEASURES = ("dR", "dlogit", "switch", "dR_summed", "switch_example")
EPS = 1e-9
"""As published: added to the attention on a slot before the logarithm."""
CASE = ["prompt", "i", "j", "correct", "condition", "draw"]
"""The columns that identify an example of a condition; each has a row per head."""


def readout_of(evidence: Evidence) -> ReadoutKinds:
    """The read-out set of the request; by default both kinds."""
    return "tied" if evidence.settings.get("request", {}).get("read") == "shifted" else KINDS


def epsilon_of(evidence: Evidence) -> float:
    """The epsilon of the request, which is added to attention in the log ratio."""
    return float(evidence.settings.get("request", {}).get("epsilon", EPS))


def masses(evidence: Evidence, when: When, readout: ReadoutKinds | None = None) -> Array:
    """M of every row of the evidence: (row, slot)."""
    readout = readout or readout_of(evidence)
    rows, slots = evidence.rows, int(evidence.settings["slots"])
    if readout != "tied":
        if not readout:
            raise EvidenceError("a read-out set names at least one of box and object")
        of_kinds: Array = np.sum([_attention(rows, when, kind, slots) for kind in readout], axis=0)
        return of_kinds
    total = np.zeros((len(rows), slots))
    conditions: dict[str, Any] = evidence.settings["conditions"]
    for kind in KINDS:
        reads = rows["condition"].isin([name for name, settings in conditions.items() if kind in settings["kinds"]])
        total += np.where(reads.to_numpy()[:, None], _attention(rows, when, kind, slots), 0.0)
    return total


def _attention(rows: pd.DataFrame, when: str, kind: str, slots: int) -> Array:
    """The attention on the tokens of one kind: (row, slot)."""
    return np.stack([rows[f"{when}_{kind}_{slot}"].to_numpy(np.float64) for slot in range(slots)], axis=1)


def per_head(evidence: Evidence, *, readout: ReadoutKinds | None = None, eps: float | None = None) -> pd.DataFrame:
    """dR and switch of every example and head."""
    rows, eps = evidence.rows, epsilon_of(evidence) if eps is None else eps
    i, j = rows["i"].to_numpy(), rows["j"].to_numpy()
    before, after = masses(evidence, "before", readout), masses(evidence, "after", readout)
    table = rows[[*CASE, "layer", "head"]].copy()
    table["dR"] = _ratio(after, i, j, eps) - _ratio(before, i, j, eps)
    table["switch"] = (before.argmax(1) == i) & (after.argmax(1) == j)
    return table


def per_example(evidence: Evidence, *, readout: ReadoutKinds | None = None, eps: float | None = None) -> pd.DataFrame:
    """All measures of every example, condition and draw; `switch` is the share of heads that switch."""
    eps = epsilon_of(evidence) if eps is None else eps
    table = per_head(evidence, readout=readout, eps=eps).groupby(CASE, sort=False)[["dR", "switch"]].mean()
    i, j = (table.index.get_level_values(name).to_numpy() for name in ("i", "j"))
    before, after = (_per_case(evidence, masses(evidence, when, readout), "sum") for when in WHEN)
    table["dR_summed"] = _ratio(after, i, j, eps) - _ratio(before, i, j, eps)
    table["switch_example"] = (before.argmax(1) == i) & (after.argmax(1) == j)
    z_before, z_after = (_per_case(evidence, logits(evidence, when), "first") for when in WHEN)
    table["dlogit"] = _margin(z_after, i, j) - _margin(z_before, i, j)
    return table.reset_index()


def summary(
    evidence: Evidence, *, readout: ReadoutKinds | None = None, eps: float | None = None, only_correct: bool = False
) -> pd.DataFrame:
    """The table of the section: every condition's means, over examples and draws.

    `only_correct` keeps the examples that the unedited model answers correctly. Where a condition has several draws,
    `sd_*` is the standard deviation of the draws' means.
    """
    examples = per_example(evidence, readout=readout, eps=eps)
    examples = examples[examples["correct"]] if only_correct else examples
    if examples.empty:
        raise EvidenceError("no example was answered correctly; there is nothing to average")
    by_condition = examples.groupby("condition", sort=False)
    table = by_condition[list(MEASURES)].mean()
    spread = (
        examples.groupby(["condition", "draw"], sort=False)[list(MEASURES)]
        .mean()
        .groupby("condition", sort=False)
        .std()
    )
    table = table.join(spread.add_prefix("sd_"))
    table["draws"] = by_condition["draw"].nunique()
    table["n"] = by_condition.size() // table["draws"]
    return table.reset_index()


def logits(evidence: Evidence, when: When) -> Array:
    """Logits of the objects in slot order, of every row of the evidence: (row, slot)."""
    slots = range(int(evidence.settings["slots"]))
    return evidence.rows[[f"{when}_logit_{slot}" for slot in slots]].to_numpy(np.float64)


def _per_case(evidence: Evidence, values: Array, how: Literal["sum", "first"]) -> Array:
    """Aggregate the heads of each example: (example, slot), in the order of `per_example`."""
    table = pd.DataFrame(values).groupby([evidence.rows[name] for name in CASE], sort=False)
    result: Array = table.agg(how).to_numpy()
    return result


def _ratio(mass: Array, i: npt.NDArray[Any], j: npt.NDArray[Any], eps: float) -> Array:
    return _margin(np.log(mass + eps), i, j)


def _margin(values: Array, i: npt.NDArray[Any], j: npt.NDArray[Any]) -> Array:
    lines = np.arange(len(values))
    difference: Array = values[lines, j] - values[lines, i]
    return difference


@lru_cache(maxsize=8)
def examples(evidence: Evidence, eps: float = EPS) -> pd.DataFrame:
    """All measures of every example; cached, because many claims use the same evidence (compared by identity)."""
    return per_example(evidence, eps=eps)


def controls(evidence: Evidence) -> tuple[str, ...]:
    """The conditions whose vectors are random."""
    return tuple(name for name, settings in evidence.settings["conditions"].items() if settings["vectors"] != "binding")


@lru_cache(maxsize=256)
def shift(evidence: Evidence, condition: str, measure: str, eps: float = EPS) -> Array:
    """One measure of a condition, by unit; (draw, unit) where there are several draws, or sets of directions.

    A unit is an example. If every ordered pair of slots was run, it is the mean over one example of each pair, so that
    opposite effects of the two orders cancel within every unit.
    """
    table = examples(evidence, eps)
    values = by_unit(table[table["condition"] == condition], measure)
    values.setflags(write=False)  # many claims share it
    return values


def by_unit(table: pd.DataFrame, measure: str) -> Array:
    """One measure of examples, by unit; (draw, unit) where there are several draws."""
    ordered = table.sort_values(["draw", "prompt", "i", "j"])
    draws = ordered["draw"].nunique()
    by_pair = [
        rows[measure].to_numpy(dtype=np.float64).reshape(draws, -1)  # (draw, example)
        for _, rows in ordered.groupby(["i", "j"])
    ]
    units = min(of_pair.shape[1] for of_pair in by_pair)
    values: Array = np.mean([of_pair[:, :units] for of_pair in by_pair], axis=0)  # (draw, unit)
    return values[0] if draws == 1 else values


def size(values: Array) -> Array:
    """A shift with the sign of its mean removed, draw by draw: the mean of the result is the size of the shift."""
    result: Array = values * np.sign(values.mean(axis=-1, keepdims=True))
    return result


def correct(evidence: Evidence, condition: str) -> npt.NDArray[np.bool_]:
    """Whether the unedited model answers all examples of a unit, by unit."""
    right = np.atleast_2d(shift(evidence, condition, "correct"))  # (draw, unit): the same in every draw
    result: npt.NDArray[np.bool_] = right[0] == 1
    return result


def difference_of_correct(values: Array, right: npt.NDArray[np.bool_]) -> Array:
    """The mean over correct examples minus the mean over all, as one number per example: the mean of these numbers is
    the difference, and their spread that of the difference (its linear part in every example); draw by draw."""
    mean_of_right, mean = (group.mean(axis=-1, keepdims=True) for group in (values[..., right], values))
    result: Array = (mean_of_right - mean) + right / right.mean() * (values - mean_of_right) - (values - mean)
    return result


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


def select_heads_on_slots(evidence: Evidence, conventions: BindingConventions) -> Evidence:
    """All heads, or those with attention on the compared slots; a gate fails where there are none."""
    if conventions.heads == "all":
        return evidence
    table = attention_on_slots(evidence)
    require(slot_mass(table["share"]))
    enough = table[table["share"] >= LEAST_MASS]
    if len(enough) == len(table):
        return evidence
    return with_heads(evidence, frozenset(zip(enough["layer"], enough["head"], strict=True)))
