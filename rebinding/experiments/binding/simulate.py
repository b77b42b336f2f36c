"""Section 5, simulated: attention on slots and logits of their objects, before and after a shift.

Of a head before the shift, r = ln(M_j / M_i); dR is added to it. A head that is to switch begins as far below 0 as it
ends above; any other stays with slot i. So dR and the share of switches can both be what is printed: a head that
switches has a larger dR than one that does not, by `lift`, and the means stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.experiments.binding.candidates import PRINTED_ROW
from rebinding.experiments.binding.conditions import Condition
from rebinding.experiments.binding.directions import KINDS
from rebinding.experiments.binding.request import Exchange, Shifts
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import leave_out, simulates
from rebinding.paper.circuit import Head
from rebinding.paper.worlds import Run

Array: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]
SLOTS, THIRD = 3, 0.1
"""A tenth of the attention on the context is on the slot that no shift is about."""
RANDOM = "matched_noise"
HEADS = 4
"""So many heads of group B stand for all: they spread alike, and what is judged is their mean."""
VARIED = {"third slot": "third", "narrative": "narrative"}
"""What a world calls the share of a shift that is left in a variation."""
LEAST = 2.0
"""A head that switches has a dR of about as much at least, four times what heads spread by."""


@dataclass(frozen=True, eq=False)
class Cases:
    """Prompts (and the place of each among those drawn) with the slots that they are shifted between; `right` are those
    that the model answers."""

    prompt: Whole
    place: Whole
    i: Whole
    j: Whole
    right: npt.NDArray[np.bool_]
    heads: tuple[Head, ...]


@simulates(Shifts)
def simulate_shifts(prompts: Prompts, request: Shifts, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Every batch of directions, condition and draw on every case and head."""
    cases = _cases(prompts, request, run)
    parts = [
        _rows(cases, Sample(run, request, condition, draw + batch * request.draws))
        for batch in range(len(request.batches))
        for condition in request.conditions
        for draw in range(request.draws if condition.vectors == RANDOM else 1)
    ]
    conditions = {one.name: {"vectors": one.vectors, "kinds": list(one.kinds)} for one in request.conditions}
    asked = {"read": request.read, "epsilon": request.epsilon}
    settings = {"slots": SLOTS, "conditions": conditions, "request": asked}
    return pd.DataFrame({name: np.concatenate([one[name] for one in parts]) for name in parts[0]}), settings


def _cases(prompts: Prompts, request: Shifts, run: Run) -> Cases:
    stories = prompts.drawn(request.prompts).prompts
    found = [(n, i, j) for n, one in enumerate(stories) for i, j in request.slots if one.prompt.answer_slot == i]
    place, i, j = np.array(found).T
    right = run.dice("answered", request.prompts.design).random(len(stories)) < run.world.mean("accuracy.full")
    return Cases(np.array(request.prompts.ids)[place], place, i, j, right[place], request.batches[0].heads[:HEADS])


@dataclass(frozen=True, eq=False)
class Sample:
    """One condition with one set of directions, or with one random draw."""

    run: Run
    asked: Shifts
    condition: Condition
    draw: int

    @property
    def name(self) -> str:
        """What the printed row is called. Each of the controls may be the one that was printed, and what the text says
        does what is printed as well, with the same chance in its directions and prompts: a world knows one number of a
        row."""
        if self.condition.vectors != "binding":
            return "random"
        return PRINTED_ROW.get(self.condition.name, self.condition.name)

    def mean(self, measure: str) -> float:
        """As printed; one of many random directions has a mean of its own, about 0."""
        if self.condition.vectors == RANDOM and measure != "switch":
            return 0.0
        found = self.run.world.mean(f"binding.{self.name}.{measure}")
        if self.asked.variation == "isolated" and self.condition.keys != "none":
            found *= self.run.world.mean("isolated")
        share = VARIED.get(self.asked.variation)
        return found if share is None else found * self.run.world.mean(share)

    def means(self, measure: str, right: npt.NDArray[np.bool_]) -> Array:
        """The same by case, where it is printed what it is on cases that are answered."""
        every, world = self.mean(measure), self.run.world
        told, share = world.means.get(f"correct_only.{self.name}.{measure}", every), world.mean("accuracy.full")
        return np.where(right, told, every if told == every else (every - share * told) / (1 - share))

    def shift(self, measure: str, cases: Cases) -> Array:
        """By case: its mean, what this set of directions adds, and what the prompt adds whatever the directions."""
        world, every = self.run.world, self.mean(measure)
        told = "binding", PRINTED_ROW.get(self.condition.name, self.condition.name), measure, self.asked.prompts.design
        apart = world.spreads[f"random_{measure}"] if self.condition.vectors == RANDOM else (
            world.spreads["set"] * max(abs(every), world.spreads["least"])
        )  # fmt: skip
        of_set = apart * self.run.dice(*told, "set", self.draw).standard_normal()
        of_prompt = self.run.dice(*told, "prompt").standard_normal(cases.place.max() + 1)[cases.place]
        found: Array = self.means(measure, cases.right) + of_set + world.around(every) * of_prompt
        return found


def _rows(cases: Cases, sample: Sample) -> dict[str, npt.NDArray[Any]]:
    """A row per case and head: its columns."""
    width = len(cases.heads)
    layer, head = np.tile(np.array(cases.heads), (len(cases.place), 1)).T
    known = {name: np.repeat(getattr(cases, name), width) for name in ("prompt", "i", "j")}
    rows = known | {"layer": layer, "head": head, "correct": np.repeat(cases.right, width)}
    constant = {"condition": sample.condition.name, "draw": sample.draw, "moved": 1.0}
    rows |= {name: np.full(len(head), value) for name, value in constant.items()}
    before, after = _ratios(cases, sample)
    for when, ratio in (("before", before), ("after", after)):
        masses = _masses(known["i"], known["j"], ratio, sample.run.world.mean("mass"))
        for slot in range(SLOTS):
            rows |= {f"{when}_{kind}_{slot}": masses[:, slot] / len(KINDS) for kind in KINDS}
    for when, logits in zip(("before", "after"), _logits(cases, sample), strict=True):
        rows |= {f"{when}_logit_{slot}": np.repeat(logits[:, slot], width) for slot in range(SLOTS)}
    return rows


def _ratios(cases: Cases, sample: Sample) -> tuple[Array, Array]:
    """ln(M_j / M_i) before and after, (case x head)."""
    share, mean = sample.mean("switch"), sample.mean("dR")
    dice = sample.run.dice("heads", sample.condition.name, sample.asked.variation, sample.draw)
    count = len(cases.place) * len(cases.heads)
    lift = max(LEAST, LEAST - mean) / (1 - share)
    chosen = dice.random(count) < share
    noise = sample.run.world.spreads["head"] * dice.standard_normal(count)
    change = np.repeat(sample.shift("dR", cases), len(cases.heads)) + noise + lift * (chosen - share)
    before = np.where(chosen & (change > 0), -change / 2, -1 - np.maximum(change, 0))
    return before, before + change


def _masses(i: Whole, j: Whole, ratio: Array, whole: float) -> Array:
    """Attention on all three slots, (row, slot)."""
    found = np.full((len(ratio), SLOTS), THIRD * whole)
    line, rest = np.arange(len(ratio)), (1 - THIRD) * whole
    found[line, j] = rest / (1 + np.exp(-ratio))
    found[line, i] = rest / (1 + np.exp(ratio))
    return found


def _logits(cases: Cases, sample: Sample) -> tuple[Array, Array]:
    """Of the objects, before and after, (case, slot): slot i leads where the model answers, else slot j."""
    before = np.zeros((len(cases.place), SLOTS))
    line = np.arange(len(before))
    before[line, cases.i] = np.where(cases.right, 2.0, 0.5)
    before[line, cases.j] = 1.0
    after, change = before.copy(), sample.shift("dlogit", cases)
    after[line, cases.i] -= change / 2
    after[line, cases.j] += change / 2
    return before, after


leave_out(Exchange, "ours; no sentence says what a head's own query of another question does")
