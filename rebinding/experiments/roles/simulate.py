"""Section 4.2, simulated: the effect of attention-pattern patching of each group on three words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.prompts import Prompts
from rebinding.experiments.roles.request import WHOLE_GROUP, WORDS, Interchange, RandomInterchange, RolePair
from rebinding.experiments.simulation import simulates
from rebinding.paper.worlds import Run

JUDGED = {"pointer": ("pointer", "pointed_object"), "content_control": ("content", "new_object")}
"""For each kind of pairs, the name of its printed number and the word that it measures."""

UNSIMULATED: dict[str, Any] = {
    "layer": WHOLE_GROUP,
    "head": WHOLE_GROUP,
    "text": "",
    "token": 0,
    "before": 0.0,
    "counterfactual": 0.0,
    "future_mass": 0.0,
    "relative_change": 1.0,
}
"""Columns that no rule uses."""


@simulates(Interchange)
def simulate_interchange(prompts: Prompts, request: Interchange, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per pair, group and word. The logit of the judged word changes by the group's mean, with a spread over ids
    that both directions of an id share; the other words do not change. Every head does an equal share of it."""
    name, judged = JUDGED[request.counterfactual]
    frames = []
    for group, heads in request.groups:
        mean = run.world.means.get(f"roles.{group}.{name}", 0.0)
        key = "roles", group, name, request.prompts.design
        whole = changes(prompts, request, run, key, mean, judged).assign(group=group)
        frames.append(whole)
        if request.single_heads:
            frames += [whole.assign(layer=at, head=head, after=whole["after"] / len(heads)) for at, head in heads]
    return pd.concat(frames, ignore_index=True), {"kind": request.counterfactual}


@simulates(RandomInterchange)
def simulate_random_interchange(
    prompts: Prompts, request: RandomInterchange, run: Run
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per pair, draw and word. Random groups change nothing on average; the paper prints nothing of them."""
    _, judged = JUDGED[request.counterfactual]
    frames = []
    for draw in range(request.draws):
        key = "random groups", request.group, draw, request.prompts.design
        frames.append(changes(prompts, request, run, key, 0.0, judged).assign(draw=draw))
    return pd.concat(frames, ignore_index=True), {}


def changes(
    prompts: Prompts, request: Interchange | RandomInterchange, run: Run, key: tuple[Any, ...], mean: float,
    judged: str,
) -> pd.DataFrame:  # fmt: skip
    """A row per pair and word: the judged word changes by the mean, with a spread over ids, part of which all groups
    may share."""
    pairs = [RolePair(*pair) for pair in prompts.encode(request.prompts).pairs]
    ids, slots = np.array([pair.id for pair in pairs]), np.array([pair.answer_slot for pair in pairs])
    unique_ids, place = np.unique(ids, return_inverse=True)
    own = run.dice(*key).standard_normal(len(unique_ids))
    of_id = run.correlate(own, "roles", request.prompts.design, is_opposed=key[:2] == ("roles", "B"))
    change = mean + run.rounding(*key) + run.world.around(mean) * of_id[place]
    frames = [
        pd.DataFrame({"prompt": ids, "answer_slot": slots, "word": word, "after": change if word == judged else 0.0})
        for word in WORDS
    ]
    return pd.concat(frames, ignore_index=True).assign(**UNSIMULATED)
