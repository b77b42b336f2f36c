"""Sections 4.1 and 4.2 by hand: what heads look at, and what follows if they look as in another prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.circuit.random_circuits import draw_circuits
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.task.prompts import Encoded
from rebinding.task.text import FUNCTIONS
from tests.oracles.by_hand.compare import Again, moved, numbered, sized
from tests.oracles.by_hand.plain_model import Plain, Put


def of_looks(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A head's attention on a token that has a role."""
    by_id = dict(zip(request.prompts.ids, prompts.encode(request.prompts).prompts, strict=True))
    for index, row in numbered(rows):
        prompt, layer = by_id[int(row["prompt"])], int(row["layer"])
        at, key = prompt.roles[request.at], _named(prompt, row["token"])
        attention = float(plain.clean(prompt.ids).attention[layer][0, int(row["head"]), at, key])
        yield Again(index, {"attention": attention, "uniform": 1 / (at + 1)}, plain.scores(prompt.ids, [layer]))


def _named(prompt: Encoded, name: str) -> int:
    """A token by what it does, or else by where it stands, if it does nothing: of those there is one."""
    if name in FUNCTIONS:
        return prompt.roles[name]
    doing = {prompt.roles[one] for one in FUNCTIONS if one in prompt.roles}
    (found,) = {at for one, at in prompt.roles.items() if one.partition("[")[0] == name and at not in doing}
    return found


def of_interchange(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A group's outputs or attention as in the counterfactual, at one token of the original."""
    pairs = {(number, _slot(own)): (own, other) for number, own, other in prompts.encode(request.prompts).pairs}
    for index, row in numbered(rows):
        pair = pairs[int(row["prompt"]), int(row["answer_slot"])]
        heads = dict(request.groups)[row["group"]]
        yield _patched(plain, prompts, request, index, row, row["group"], heads, *pair)


def of_random_groups(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The same with groups that are drawn: which heads are drawn is no measurement."""
    pairs = {(number, _slot(own)): (own, other) for number, own, other in prompts.encode(request.prompts).pairs}
    own_group = Circuit(tuple(CircuitHead(request.group, layer, head, "readout") for layer, head in request.heads))
    groups = draw_circuits(
        own_group, len(plain.layers), plain.heads, draws=request.draws, match="role_and_layer", exclude=True
    )
    for index, row in numbered(rows):
        pair = pairs[int(row["prompt"]), int(row["answer_slot"])]
        heads = [(head.layer, head.head) for head in groups[int(row["draw"])].heads]
        yield _patched(plain, prompts, request, index, row, request.group, heads, *pair)


def _patched(
    plain: Plain, prompts: Prompts, request: Any, index: int, row: Any, group: Group,
    heads: Sequence[tuple[int, int]], own: Encoded, other: Encoded,
) -> Again:  # fmt: skip
    """Logits of a word before and after heads get what they have in the counterfactual."""
    puts, far, late = _given(plain, request, group, heads, own, other)
    word = _word(own, other, row["word"])
    token = prompts.encoder.answer_token(word, request.answers)
    assert (word, token) == (row["text"], row["token"])
    found = plain.answer(own.ids), plain.run([(own.ids, puts)]).logits[0], plain.answer(other.ids)
    logits = dict(zip(("before", "after", "counterfactual"), (float(one[token]) for one in found), strict=True))
    size = sized(*found, least=plain.scores(other.ids, [layer for layer, _ in heads]))
    return Again(index, logits | {"moved": far, "future_mass": late}, size)


def _slot(own: Encoded) -> int:
    return own.prompt.story.objects.index(own.prompt.answer)


def _word(own: Encoded, other: Encoded, which: str) -> str:
    """The original's answer, the counterfactual's, and what the asked box of the original holds before the swap."""
    story = own.prompt.story
    pointed = story.objects[story.boxes.index(own.prompt.question)]
    return {"answer": own.prompt.answer, "new_object": other.prompt.answer, "pointed_object": pointed}[which]


def _given(
    plain: Plain, request: Any, group: Group, heads: Sequence[tuple[int, int]], own: Encoded, other: Encoded
) -> tuple[list[Put], float, float]:
    """What is put in, how far it is from what was there, and how much of it looks at later tokens."""
    role = "readout" if request.mode == "paper" else ROLE_OF_GROUP[group]
    outputs = request.mode == "published" and group == "A"
    here, there = own.roles[role], other.roles[role]
    mine, theirs = plain.clean(own.ids), plain.clean(other.ids)
    puts, far, late = [], [], []
    for layer, head in heads:
        if outputs:
            old, new = (x.values["z", layer][0, at, plain.span(head)] for x, at in ((mine, here), (theirs, there)))
        else:
            old, new = (x.attention[layer][0, head, at] for x, at in ((mine, here), (theirs, there)))
            late.append(float(new[here + 1 :].sum()))
        far.append(moved(new, old))
        masked = new if outputs or request.future == "keep" else _seen(new, here)
        puts.append(Put("z" if outputs else "pattern", layer, here, masked, head))
    return puts, max(far), max(late, default=0.0)


def _seen(row: Tensor, query: int) -> Tensor:
    """Attention (key,) without what stands after the query, and the rest scaled up to one."""
    past = torch.where(torch.arange(len(row)) > query, 0.0, row)
    return past / past.sum() if bool((row[query + 1 :] > 0).any()) else row
