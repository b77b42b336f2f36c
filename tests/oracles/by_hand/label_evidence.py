"""Keys at the labels of a swap by hand: means by slot, and both labels exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.prompts import Prompts
from tests.oracles.by_hand.compare import Again, numbered, prompt_of, sized
from tests.oracles.by_hand.plain_model import Plain, Put


@cache
def label_vectors_of(plain: Plain, prompts: Prompts, request: Any) -> Tensor:
    """Mean keys (slot, head, head_dim): each prompt has one of the asked box's slot and one of its partner's."""
    by_slot: dict[int, list[Tensor]] = {}
    for one in prompts.encode(request.prompts).prompts:
        story = one.prompt.story
        for box, role in ((one.prompt.question, "swap_asked"), (one.prompt.partner, "swap_partner")):
            assert box is not None
            keys = plain.clean(one.ids).values
            found = [keys["k", layer][0, one.roles[role], plain.span(head)] for layer, head in request.heads]
            by_slot.setdefault(story.boxes.index(box), []).append(torch.stack(found))
    return torch.stack([torch.stack(by_slot[slot]).double().mean(0).float() for slot in sorted(by_slot)])


def of_label_exchange(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The label of slot i gets what the mean of slot j has more, and the other way round; i is where the answer is."""
    assert request.scope == "head"
    for index, row in numbered(rows):
        prompt, i, j = prompt_of(prompts, request, row), int(row["i"]), int(row["j"])
        story = prompt.prompt.story
        assert (i, j) == (story.objects.index(prompt.prompt.answer), story.boxes.index(prompt.prompt.question))
        means = label_vectors_of(plain, prompts, request.batches[int(row["draw"])])
        shift, at = means[j] - means[i], {"i": prompt.roles["swap_partner"], "j": prompt.roles["swap_asked"]}
        puts = [
            Put("k", layer, at[slot], sign * vector, head, add=True)
            for (layer, head), vector in zip(request.heads, shift, strict=True)
            for slot, sign in (("i", 1), ("j", -1))
        ]
        layer, head, end = int(row["layer"]), int(row["head"]), prompt.roles["readout"]
        before, after = plain.clean(prompt.ids), plain.run([(prompt.ids, puts)], attention=True)
        told: dict[str, float | bool | None] = {"moved": float(shift.abs().max() / means.abs().max())}
        for when, seen in (("before", before), ("after", after)):
            for slot, place in (("i", i), ("j", j)):
                token = prompts.encoder.answer_token(story.objects[place], request.answers)
                told[f"{when}_logit_{slot}"] = float(seen.logits[0, token])
                told[f"{when}_label_{slot}"] = float(seen.attention[layer][0, head, end, at[slot]])
        size = sized(before.logits, after.logits, least=plain.scores(prompt.ids, range(len(plain.layers))))
        yield Again(index, told, size)
