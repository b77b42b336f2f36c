"""The unedited model, simulated: answers with printed accuracy and margins, exact replays, a declared noise floor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import simulates
from rebinding.experiments.unedited.request import Ability, Floors, Replays
from rebinding.paper.worlds import Run, World, world

Array: TypeAlias = npt.NDArray[np.float64]
NEARLY_ALL = 0.9975
"""The accuracy that stands for a printed 1.00: the middle of the values that round to it."""


@simulates(Replays)
def simulate_replays(prompts: Prompts, request: Replays, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Every replay is the model's own forward."""
    rows = [
        {"prompt": number, "layer": 0, "token": 0, "difference": 0.0, "tolerance": 1.0}
        for number in request.prompts.ids
    ]
    return pd.DataFrame(rows), {}


@simulates(Floors)
def simulate_floors(prompts: Prompts, request: Floors, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Null edits change every prompt by the noise floor."""
    floor = run.world.spreads["floor"]
    columns = {"company": "alone", "layer": -1, "token": -1, "logit": floor, "lead": floor}
    return pd.DataFrame([{"prompt": number, **columns} for number in request.prompts.ids]), {}


@simulates(Ability)
def simulate_ability(prompts: Prompts, request: Ability, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, of the full model. The rival's model can do the task as the printed one does: a world in which
    this gate fails says nothing of any rule."""
    ids = np.array(request.prompts.ids)
    if run.world.name == "rival":
        run = replace(run, world=world("paper", run.world.model))
    return pd.DataFrame({"prompt": ids, **draw_answers(run, "full", len(ids), request.prompts.tokens)}), {}


def draw_answers(
    run: Run, which: str, n: int, *what: Any, variant: tuple[Any, ...] = (), lift: float = 0.0
) -> dict[str, Array]:
    """The four measures of `n` answers. The margin over the best other object is normal; its mean and the share above 0
    are printed and give its spread. `lift` is added to every margin. Variants that differ in `which` or `variant` alone
    answer the same prompts."""
    world, dice = run.world, run.dice("answers", which, *what, *variant)
    of_prompt = run.correlate(dice.standard_normal(n), "answers", *what, is_opposed=which == "circuit")
    margin = world.mean(f"margin.{which}") + lift + margin_spread(world, which) * of_prompt
    logit = world.mean(f"logit.{which}") + world.spreads["logit"] * dice.standard_normal(n)
    return {
        "label_logit": logit,
        "margin": margin,
        "hit": (margin > 0).astype(float),
        "probability": probability(margin),
    }


def probability(margin: Array) -> Array:
    """The probability of an answer that leads two objects by a margin, if no other word has any."""
    result: Array = 1 / (1 + 2 * np.exp(-margin))
    return result


def margin_spread(world: World, which: str) -> float:
    """sd = mean / quantile(accuracy): 8.87 and 1.00 make 3.2, 0.84 and 0.71 make 1.5."""
    share = min(world.mean(f"accuracy.{which}"), NEARLY_ALL)
    return float(world.mean(f"margin.{which}") / stats.norm.ppf(share))
