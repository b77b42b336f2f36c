"""Section 4.2, made up: what each group's attention of a counterfactual does to three words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.roles.interchange import RolePair
from rebinding.experiments.roles.kinds import WHOLE_GROUP, WORDS
from rebinding.experiments.roles.request import Interchange
from rebinding.power.world import Run
from rebinding.study.bench import Bench

JUDGED = {"pointer": ("pointer", "pointed_object"), "content_control": ("content", "new_object")}
"""For each kind of pairs, how its printed number is named and of which word it is."""


def interchange(bench: Bench, asked: Interchange, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per pair, group and word. The judged word moves by the group's mean and spreads between ids, both
    directions of an id together; the others do not move."""
    pairs = [RolePair(number, own, other) for number, own, other in bench.drawn(asked.prompts).pairs]
    ids, slots = np.array([one.id for one in pairs]), np.array([one.answer_slot for one in pairs])
    name, judged = JUDGED[asked.counterfactual]
    frames = []
    for group, _ in asked.groups:
        mean = run.world.means.get(f"roles.{group}.{name}", 0.0)
        known, place = np.unique(ids, return_inverse=True)
        drawn = run.dice("roles", group, name, asked.prompts.design).standard_normal(len(known))[place]
        for word in WORDS:
            change = mean + run.world.around(mean) * drawn if word == judged else np.zeros(len(ids))
            row = {"prompt": ids, "answer_slot": slots, "word": word, "group": group, "after": change}
            frames.append(pd.DataFrame(row))
    rows = pd.concat(frames, ignore_index=True)
    constant: dict[str, Any] = {
        "text": "",
        "token": 0,
        "before": 0.0,
        "counterfactual": 0.0,
        "future_mass": 0.0,
        "moved": 1.0,
    }
    return rows.assign(layer=WHOLE_GROUP, head=WHOLE_GROUP, **constant), {"kind": asked.counterfactual}
