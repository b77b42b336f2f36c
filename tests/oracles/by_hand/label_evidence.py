"""Keys at the labels of a swap by hand: means by slot, and both labels exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.prompts import Stories
from tests.oracles.by_hand.compare import Recomputation, find_prompt, numbered, sized
from tests.oracles.by_hand.plain_model import Plain, Put


@cache
def recompute_label_vectors(plain: Plain, prompts: Stories, request: Any) -> Tensor:
    """Mean keys (slot, head, head_dim): each prompt has one of the asked box's slot and one of its partner's."""
    by_slot: dict[int, list[Tensor]] = {}
    for prompt in prompts.encode(request.prompts).prompts:
        story = prompt.prompt.story
        for box, role in ((prompt.prompt.question, "swap_asked"), (prompt.prompt.partner, "swap_partner")):
            assert box is not None
            keys = plain.clean(prompt.ids).values
            values = [keys["k", layer][0, prompt.roles[role], plain.span(head)] for layer, head in request.heads]
            by_slot.setdefault(story.boxes.index(box), []).append(torch.stack(values))
    return torch.stack([torch.stack(by_slot[slot]).double().mean(0).float() for slot in sorted(by_slot)])


def recompute_label_exchange(
    plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame
) -> Iterator[Recomputation]:
    """The label of slot i gets what the mean of slot j has more, and the other way round; i is where the answer is."""
    assert request.scope == "head"
    for index, row in numbered(rows):
        prompt, i, j = find_prompt(prompts, request, row), int(row["i"]), int(row["j"])
        story = prompt.prompt.story
        assert (i, j) == (story.objects.index(prompt.prompt.answer), story.boxes.index(prompt.prompt.question))
        means = recompute_label_vectors(plain, prompts, request.batches[int(row["draw"])])
        shift, at = means[j] - means[i], {"i": prompt.roles["swap_partner"], "j": prompt.roles["swap_asked"]}
        puts = [
            Put("k", layer, at[slot], sign * vector, head, add=True)
            for (layer, head), vector in zip(request.heads, shift, strict=True)
            for slot, sign in (("i", 1), ("j", -1))
        ]
        layer, head, end = int(row["layer"]), int(row["head"]), prompt.roles["readout"]
        before, after = plain.clean(prompt.ids), plain.run([(prompt.ids, puts)], attention=True)
        values: dict[str, float | bool | None] = {"relative_change": float(shift.abs().max() / means.abs().max())}
        for moment, pattern in (("before", before), ("after", after)):
            for slot, place in (("i", i), ("j", j)):
                token = prompts.encoder.answer_token(story.objects[place], request.answers)
                values[f"{moment}_logit_{slot}"] = float(pattern.logits[0, token])
                values[f"{moment}_label_{slot}"] = float(pattern.attention[layer][0, head, end, at[slot]])
        size = sized(before.logits, after.logits, minimum=plain.scores(prompt.ids, range(len(plain.layers))))
        yield Recomputation(index, values, size)
