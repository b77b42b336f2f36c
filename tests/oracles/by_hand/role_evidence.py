"""Sections 4.1 and 4.2 by hand: attention of heads, and the effect of patching it from another prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.attention import AttentionToRoles, ShapedAttention
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import draw_circuits
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.task.prompts import Encoded
from rebinding.task.text import FUNCTIONS
from tests.oracles.by_hand.compare import Recomputation, Recompute, numbered, relative_difference, sized
from tests.reference.naive.edits import head_value, interchanged
from tests.reference.naive.plain_model import Plain, Put


def recompute_attention(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A head's attention on a token that has a role."""
    by_id = dict(zip(request.prompts.ids, prompts.encode(request.prompts).prompts, strict=True))
    for index, row in numbered(rows):
        prompt, layer = by_id[int(row["prompt"])], int(row["layer"])
        at, key = prompt.roles[request.at], _token_of_role(prompt, row["token"])
        attention = float(plain.clean(prompt.ids).attention[layer][0, int(row["head"]), at, key])
        yield Recomputation(index, {"attention": attention, "uniform": 1 / (at + 1)}, plain.scores(prompt.ids, [layer]))


def recompute_shaped_attention(
    plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame
) -> Iterator[Recomputation]:
    """The same where senders have their outputs of the noise prompt, and how far these are from their own."""
    pairs = {number: (clean, noise) for number, clean, noise in prompts.encode(request.prompts).pairs}
    for index, row in numbered(rows):
        clean, noise = pairs[int(row["prompt"])]
        layer, head = int(row["layer"]), int(row["head"])
        at, key = clean.roles[request.at], _token_of_role(clean, row["token"])
        puts, changes = [], []
        for sender in request.from_noise:
            place = clean.roles[sender.role]
            old, new = (head_value(plain, "z", side.ids, sender[1:3], place) for side in (clean, noise))
            puts.append(Put("z", sender.layer, place, new, sender.head))
            changes.append(relative_difference(new, old))
        runs = plain.clean(clean.ids), plain.run([(clean.ids, puts)], attention=True)
        before, after = (float(run.attention[layer][0, head, at, key]) for run in runs)
        values = {"before": before, "after": after, "relative_change": max(changes)}
        yield Recomputation(index, values, plain.scores(clean.ids, [layer]))


def _token_of_role(prompt: Encoded, name: str) -> int:
    """A token by what it does, or else by where it stands, if it does nothing: of those there is one."""
    if name in FUNCTIONS:
        return prompt.roles[name]
    doing = {prompt.roles[function] for function in FUNCTIONS if function in prompt.roles}
    (token,) = {at for role, at in prompt.roles.items() if role.partition("[")[0] == name and at not in doing}
    return token


def recompute_interchange(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A group's outputs or attention as in the counterfactual, at one token of the original."""
    pairs = {
        (number, _slot(clean)): (clean, counterfactual)
        for number, clean, counterfactual in prompts.encode(request.prompts).pairs
    }
    for index, row in numbered(rows):
        pair = pairs[int(row["prompt"]), int(row["answer_slot"])]
        whole = row["head"] < 0
        heads = dict(request.groups)[row["group"]] if whole else [(int(row["layer"]), int(row["head"]))]
        yield _patched(plain, prompts, request, index, row, row["group"], heads, *pair)


def recompute_random_groups(
    plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame
) -> Iterator[Recomputation]:
    """The same with groups that are drawn: which heads are drawn is no measurement."""
    pairs = {
        (number, _slot(clean)): (clean, counterfactual)
        for number, clean, counterfactual in prompts.encode(request.prompts).pairs
    }
    own_group = Circuit(tuple(CircuitHead(request.group, layer, head, "readout") for layer, head in request.heads))
    groups = draw_circuits(own_group, plain.all_heads, draws=request.draws, match="role_and_layer", exclude=True)
    for index, row in numbered(rows):
        pair = pairs[int(row["prompt"]), int(row["answer_slot"])]
        heads = [(head.layer, head.head) for head in groups[int(row["draw"])].heads]
        yield _patched(plain, prompts, request, index, row, request.group, heads, *pair)


def _patched(
    plain: Plain, prompts: Stories, request: Any, index: int, row: Any, group: Group,
    heads: Sequence[tuple[int, int]], clean: Encoded, counterfactual: Encoded,
) -> Recomputation:  # fmt: skip
    """Logits of a word before and after heads get what they have in the counterfactual."""
    puts, change, later_puts = _interchange_puts(plain, request, group, heads, clean, counterfactual)
    word = _word(clean, counterfactual, row["word"])
    token = prompts.encoder.answer_token(word, request.answers)
    assert (word, token) == (row["text"], row["token"])
    runs = plain.answer(clean.ids), plain.run([(clean.ids, puts)]).logits[0], plain.answer(counterfactual.ids)
    logits = dict(
        zip(("before", "after", "counterfactual"), (float(run_logits[token]) for run_logits in runs), strict=True)
    )
    size = sized(*runs, minimum=plain.scores(counterfactual.ids, [layer for layer, _ in heads]))
    return Recomputation(index, logits | {"relative_change": change, "future_mass": later_puts}, size)


def _slot(clean: Encoded) -> int:
    return clean.prompt.story.objects.index(clean.prompt.answer)


def _word(clean: Encoded, counterfactual: Encoded, side: str) -> str:
    """The original's answer, the counterfactual's, and what the asked box of the original holds before the swap."""
    story = clean.prompt.story
    pointed = story.objects[story.boxes.index(clean.prompt.question)]
    return {"answer": clean.prompt.answer, "new_object": counterfactual.prompt.answer, "pointed_object": pointed}[side]


def _interchange_puts(
    plain: Plain, request: Any, group: Group, heads: Sequence[tuple[int, int]], clean: Encoded, counterfactual: Encoded
) -> tuple[list[Put], float, float]:
    """What is put in, how far it is from what was there, and how much of it looks at later tokens."""
    role = "readout" if request.mode == "paper" else ROLE_OF_GROUP[group]
    outputs = request.mode == "published" and group == "A"
    token, source_token = clean.roles[role], counterfactual.roles[role]
    puts = interchanged(plain, counterfactual.ids, heads, source_token, token, outputs=outputs)
    own = interchanged(plain, clean.ids, heads, token, token, outputs=outputs)
    change = max(relative_difference(put.value, there.value) for put, there in zip(puts, own, strict=True))
    if outputs:
        return puts, change, 0.0
    later = max(float(put.value[token + 1 :].sum()) for put in puts)
    if request.future != "keep":
        puts = [replace(put, value=_visible_tokens(put.value, token)) for put in puts]
    return puts, change, later


def _visible_tokens(row: Tensor, query: int) -> Tensor:
    """Attention (key,) without what stands after the query, and the rest scaled up to one."""
    past = torch.where(torch.arange(len(row)) > query, 0.0, row)
    return past / past.sum() if bool((row[query + 1 :] > 0).any()) else row


BY_HAND: dict[type[Request], Recompute] = {
    AttentionToRoles: recompute_attention,
    ShapedAttention: recompute_shaped_attention,
    Interchange: recompute_interchange,
    RandomInterchange: recompute_random_groups,
}
