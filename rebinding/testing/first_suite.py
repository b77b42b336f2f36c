"""A suite of one claim, judged on any causal language model: pytest FOLDER --model NAME

Replace the prompts by those of your task, the measurement by yours, and say in `row` what is claimed. A measurement
returns a row for each prompt; it is stored, and made again only if this file, the model or an argument changes.
"""

from __future__ import annotations

import pandas as pd

import rebinding
from rebinding import Edit, Model, Read
from rebinding.testing import Claim, Study, Verdict, above_chance, effect, require, row

CHOSEN_ON = 24
"""The head is chosen on these prompts and judged on others: on its own prompts the largest of many looks large."""


def falls_without_the_head(model: Model, n: int) -> pd.DataFrame:
    """Of each prompt: whether the model answers it, and the fall of the answer's lead without one head."""
    design = rebinding.design("counterbalanced", model)
    scores = rebinding.patch_paths(model, model.story_pairs(design, CHOSEN_ON))
    layer, head = int(scores["layer"].iloc[0]), int(scores["head"].iloc[0])  # the largest drop
    pairs = model.story_pairs(design, n, first=CHOSEN_ON)
    recording, noise = model.record(pairs.clean), model.record(pairs.noise)
    (logits,) = recording.read(Read("answers"))  # (prompt, candidate), the right one first
    (patched,) = recording.run(Edit("z", noise, at="readout", head=(layer, head)), Read("answers"))
    before, after = (values[:, 0] - values[:, 1:].amax(1) for values in (logits, patched))  # (prompt,)
    return pd.DataFrame({"prompt": range(n), "right": (before > 0).numpy(), "fall": (before - after).numpy()})


@row(
    "mine.head",
    "One head at the readout moves the answer.",
    source="ours",
    kind="effect",
    statistic="fall of the answer's lead over the best other candidate, in logits",
    where="the head with the largest effect on other prompts, its output from a noise prompt",
    n=60,
)
def test_one_head_moves_the_answer(claim: Claim, study: Study) -> Verdict:
    table = study.measure(claim, falls_without_the_head, n=study.n(claim))
    require(above_chance(table["right"], chance=1 / 3))
    return effect(table["fall"], margin=0.1)
