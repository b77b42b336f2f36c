"""Simulate attention: in unedited prompts, and on slots before and after a shift of section 5.

**Unedited prompts**: each group attends to the tokens that the text names.

A group gives its declared share to its own tokens, and half of an even share to every other token with a role. In the
rival's world it attends equally to all tokens.

**Section 5**: attention on slots and logits of their objects, before and after a shift.

A head has r = ln(M_j / M_i) before the shift, and the shift adds dR. A head that switches begins as far below 0 as it
ends above; any other stays with slot i. So both dR and the share of switches can be the printed ones: a head that
switches has a larger dR than one that does not, by `lift`, and the means stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import norm

from rebinding.evidence import PromptSet
from rebinding.experiments.attention import AttentionToRoles, names_before
from rebinding.experiments.binding.conditions import CHOICES, PRINTED_ROW, Condition
from rebinding.experiments.binding.directions import KINDS
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.prompts import Stories
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import circuit
from rebinding.simulate.worlds import NotSimulated, Run, World
from rebinding.verdicts.estimates import Array

TARGETS: Mapping[str, tuple[str, ...]] = {"A": ("context_partner_object",), "C": ("swap_asked",), "B": ("context_",)}
"""The target tokens of a group, by the beginning of their names: A copies the answer's object, C attends to the
appropriate earlier box, and B to boxes and objects of the context."""
SHARE = {"A": "attention", "C": "attention", "B": "mass"}
"""The name in a world of the share of these tokens."""
HEADS = 4
"""The number of heads that stand for all of a group: they are alike, and rules judge their mean."""
REST = 0.5
"""The part of an even share that every other token with a role gets."""
MOST = 0.95
"""The most attention that all tokens with a role get together."""


def simulate_attention(prompts: Stories, request: AttentionToRoles, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, head and token."""
    names, even = tokens_of(prompts, request.prompts, request.at)
    ids, heads = np.array(request.prompts.ids), np.array(request.heads[:HEADS])
    group = _group_of(request.heads, run.world.model)
    means = _means(run, group, names, even)[:, None]  # (prompt, 1, token)
    dice = run.dice("attention", group, request.at, request.prompts.design)
    shape = (len(ids), len(heads), len(names))
    of_head, of_prompt = dice.standard_normal(shape), dice.standard_normal((len(ids), 1, 1))
    spread = run.world.spreads["attention"] * means / np.sqrt(2)
    attention = np.maximum(means + spread * (of_head + of_prompt), 0.0)
    attention /= np.maximum(1.0, attention.sum(axis=2, keepdims=True) / MOST)
    width = len(heads) * len(names)
    layer, head = np.tile(np.repeat(heads, len(names), axis=0), (len(ids), 1)).T
    rows = {
        "prompt": np.repeat(ids, width),
        "token": np.tile(np.array(names, dtype=object), len(ids) * len(heads)),
        "layer": layer,
        "head": head,
        "attention": attention.ravel(),
        "uniform": np.repeat(even, width),
    }
    return pd.DataFrame(rows), {"at": request.at}


def _group_of(heads: Sequence[Head], model: str) -> str:
    """The published group of some heads."""
    groups = {(head.layer, head.head): head.group for head in circuit(model)}
    if heads[0] not in groups:
        raise NotSimulated(f"attention (head {heads[0]} is in no published group of {model})")
    return groups[heads[0]]


def _means(run: Run, group: str, names: tuple[str, ...], even: Array) -> Array:
    """The mean attention on each token, (prompt, token)."""
    is_target = np.array([name.startswith(TARGETS.get(group, ())) for name in names])
    share = run.world.mean(SHARE.get(group, "attention"))
    if run.world.name == "rival" and group != "B":
        return np.repeat(even[:, None], len(names), axis=1)
    return np.where(is_target, share / max(1, is_target.sum()), REST * even[:, None])


@lru_cache(maxsize=64)
def tokens_of(prompts: Stories, request: PromptSet, at: str) -> tuple[tuple[str, ...], Array]:
    """The names of the tokens with a role before that of the heads, and an even share of attention in each prompt."""
    encoded = prompts.encode(request).prompts
    even = np.array([1 / (prompt.roles[at] + 1) for prompt in encoded])
    return tuple(names_before(encoded[0], at)), even


Whole: TypeAlias = npt.NDArray[np.int64]
SLOTS, THIRD = 3, 0.1
"""`THIRD`: the share of the attention on the context that is on the third slot, which no shift involves."""
RANDOM = "matched_noise"
SHIFTED_HEADS = 4
"""The number of heads that stand for all of group B: they spread alike, and rules judge their mean."""
VARIED = {"third slot": "third", "narrative": "narrative"}
"""The name in a world of the share of a shift that remains in a variation."""
LEAST = 2.0
"""The least dR, about, of a head that switches: four times the spread of heads."""


@dataclass(frozen=True, eq=False)
class SimulatedCases:
    """Prompts (and their places in the set) with the slots that they are shifted between; `right` marks those that the
    model answers."""

    prompt: Whole
    place: Whole
    i: Whole
    j: Whole
    right: npt.NDArray[np.bool_]
    heads: tuple[Head, ...]


def simulate_shifts(prompts: Stories, request: Shifts, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows for every batch of directions, condition and draw, on every case and head."""
    cases = _cases(prompts, request, run)
    parts = [
        _rows(cases, Sample(run, request, condition, draw + batch * request.draws))
        for batch in range(len(request.batches))
        for condition in request.conditions
        for draw in range(request.draws if condition.vectors == RANDOM else 1)
    ]
    conditions = {row.name: {"vectors": row.vectors, "kinds": list(row.kinds)} for row in request.conditions}
    options = {"read": request.read, "epsilon": request.epsilon}
    settings = {"slots": SLOTS, "conditions": conditions, "request": options}
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}), settings


def _cases(prompts: Stories, request: Shifts, run: Run) -> SimulatedCases:
    encoded = prompts.encode(request.prompts).prompts
    cases = [(n, i, j) for n, prompt in enumerate(encoded) for i, j in request.slots if prompt.prompt.answer_slot == i]
    place, i, j = np.array(cases).T
    right = run.dice("answered", request.prompts.design).random(len(encoded)) < run.world.mean("accuracy.full")
    return SimulatedCases(
        np.array(request.prompts.ids)[place], place, i, j, right[place], request.batches[0].heads[:SHIFTED_HEADS]
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """One condition with one set of directions, or with one random draw."""

    run: Run
    request: Shifts
    condition: Condition
    draw: int

    @property
    def name(self) -> str:
        """The name of the printed row. Each of the controls may be the printed one, and a condition of the text has the
        effect of its printed row, with the same random directions and prompts: a world has one number for a row."""
        if self.condition.vectors != "binding":
            return "random"
        return PRINTED_ROW.get(self.condition.name, self.condition.name)

    def correlate(self, own: Any, *what: Any) -> Array:
        """Standard normals of this condition, correlated with those of the others on the same prompts."""
        return self.run.correlate(own, "binding", *what, self.request.prompts.design, is_opposed=self.name == "qk")

    @property
    def world(self) -> World:
        """The world under the text's convention, if the condition is of the text."""
        names = (name for name, rows in CHOICES.values() if self.condition.name in dict(rows).values())
        return self.run.world.under(next(names, ""))

    def mean(self, measure: str) -> float:
        """The printed mean; one of many random directions has a mean of its own, about 0."""
        if self.condition.vectors == RANDOM and measure != "switch":
            return 0.0
        value = self.world.mean(f"binding.{self.name}.{measure}")
        if self.request.variation == "isolated" and self.condition.keys != "none":
            value *= self.run.world.mean("isolated")
        share = VARIED.get(self.request.variation)
        return value if share is None else value * self.run.world.mean(share)

    def means(self, measure: str, right: npt.NDArray[np.bool_]) -> Array:
        """The mean by case; it depends on `right` if the paper prints a mean over answered cases."""
        overall, world = self.mean(measure), self.run.world
        on_right, share = world.means.get(f"correct_only.{self.name}.{measure}", overall), world.mean("accuracy.full")
        return np.where(right, on_right, overall if on_right == overall else (overall - share * on_right) / (1 - share))

    def shift(self, measure: str, cases: SimulatedCases) -> Array:
        """The shift by case: its mean, an effect of this set of directions, and an effect of the prompt."""
        world, mean = self.run.world, self.mean(measure)
        key = "binding", PRINTED_ROW.get(self.condition.name, self.condition.name), measure, self.request.prompts.design
        spread = world.spreads[f"random_{measure}"] if self.condition.vectors == RANDOM else (
            world.spreads["set"] * max(abs(mean), world.spreads["least"])
        )  # fmt: skip
        of_set = self.correlate(
            self.run.dice(*key, "set", self.draw).standard_normal(), measure, self.condition.vectors, self.draw
        )
        of_prompt = self.correlate(self.run.dice(*key, "prompt").standard_normal(cases.place.max() + 1), measure)
        rounding = self.run.rounding(*key) if measure == "dlogit" else 0.0
        result: Array = self.means(measure, cases.right) + (spread * of_set + rounding)
        result += world.around(mean) * of_prompt[cases.place]
        return result


def _rows(cases: SimulatedCases, sample: Sample) -> dict[str, npt.NDArray[Any]]:
    """A row per case and head: its columns."""
    width = len(cases.heads)
    layer, head = np.tile(np.array(cases.heads), (len(cases.place), 1)).T
    by_case = {name: np.repeat(getattr(cases, name), width) for name in ("prompt", "i", "j")}
    rows = by_case | {"layer": layer, "head": head, "correct": np.repeat(cases.right, width)}
    constant = {"condition": sample.condition.name, "draw": sample.draw, "relative_change": 1.0}
    rows |= {name: np.full(len(head), value) for name, value in constant.items()}
    before, after = _ratios(cases, sample)
    for when, ratio in (("before", before), ("after", after)):
        masses = _masses(by_case["i"], by_case["j"], ratio, sample.run.world.mean("mass"))
        for slot in range(SLOTS):
            rows |= {f"{when}_{kind}_{slot}": masses[:, slot] / len(KINDS) for kind in KINDS}
    for when, logits in zip(("before", "after"), _logits(cases, sample), strict=True):
        rows |= {f"{when}_logit_{slot}": np.repeat(logits[:, slot], width) for slot in range(SLOTS)}
    return rows


def _ratios(cases: SimulatedCases, sample: Sample) -> tuple[Array, Array]:
    """ln(M_j / M_i) before and after, (case x head)."""
    share, mean = sample.mean("switch"), sample.mean("dR")
    dice = sample.run.dice("heads", sample.condition.name, sample.request.variation, sample.draw)
    count = len(cases.place) * len(cases.heads)
    lift = max(LEAST, LEAST - mean) / (1 - share)
    chosen = sample.correlate(norm.ppf(dice.random(count)), "switch", sample.draw) < norm.ppf(share)
    noise = sample.run.world.spreads["head"] * sample.correlate(dice.standard_normal(count), "heads", sample.draw)
    change = np.repeat(sample.shift("dR", cases), len(cases.heads)) + noise + lift * (chosen - share)
    before = np.where(chosen & (change > 0), -change / 2, -1 - np.maximum(change, 0))
    return before, before + change


def _masses(i: Whole, j: Whole, ratio: Array, mass: float) -> Array:
    """Attention on all three slots: (row, slot)."""
    masses = np.full((len(ratio), SLOTS), THIRD * mass)
    row, rest = np.arange(len(ratio)), (1 - THIRD) * mass
    masses[row, j] = rest / (1 + np.exp(-ratio))
    masses[row, i] = rest / (1 + np.exp(ratio))
    return masses


def _logits(cases: SimulatedCases, sample: Sample) -> tuple[Array, Array]:
    """Logits of the objects before and after: (case, slot). Slot i leads if the model answers, else slot j."""
    before = np.zeros((len(cases.place), SLOTS))
    case = np.arange(len(before))
    before[case, cases.i] = np.where(cases.right, 2.0, 0.5)
    before[case, cases.j] = 1.0
    after, change = before.copy(), sample.shift("dlogit", cases)
    after[case, cases.i] -= change / 2
    after[case, cases.j] += change / 2
    return before, after
