"""Sections 4.1 and 4.2 by hand: attention of heads, and the effect of patching it from another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.attention import AttentionToRoles, ShapedAttention
from rebinding.experiments.random_draws import draw_circuits
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.task.prompts import Encoded
from rebinding.task.text import FUNCTIONS
from tests.oracles.by_hand.compare import EvidenceRow, Recompute, Values, relative_difference, sized
from tests.reference.naive.edits import head_value, interchanged
from tests.reference.naive.plain_model import Head, Put


def recompute_attention(row: EvidenceRow) -> tuple[Values, float]:
    """A head's attention on a token that has a role."""
    prompt, (layer, head) = row.prompt, row.head
    at, key = prompt.roles[row.request.at], _token_of_role(prompt, row["token"])
    attention = float(row.plain.clean(prompt.ids).attention[layer][0, head, at, key])
    return {"attention": attention, "uniform": 1 / (at + 1)}, row.plain.scores(prompt.ids, [layer])


def recompute_shaped_attention(row: EvidenceRow) -> tuple[Values, float]:
    """The same where senders have their outputs of the noise prompt, and how far these are from their own."""
    plain, clean, noise, (layer, head) = row.plain, row.prompt, row.counterfactual, row.head
    at, key = clean.roles[row.request.at], _token_of_role(clean, row["token"])
    puts, changes = [], []
    for sender in row.request.from_noise:
        place = clean.roles[sender.role]
        old, new = (head_value(plain, "z", side.ids, sender[1:3], place) for side in (clean, noise))
        puts.append(Put("z", sender.layer, place, new, sender.head))
        changes.append(relative_difference(new, old))
    runs = plain.clean(clean.ids), plain.run([(clean.ids, puts)], attention=True)
    before, after = (float(run.attention[layer][0, head, at, key]) for run in runs)
    return {"before": before, "after": after, "relative_change": max(changes)}, plain.scores(clean.ids, [layer])


def _token_of_role(prompt: Encoded, name: str) -> int:
    """A token by what it does, or else by where it stands, if it does nothing: of those there is one."""
    if name in FUNCTIONS:
        return prompt.roles[name]
    doing = {prompt.roles[function] for function in FUNCTIONS if function in prompt.roles}
    (token,) = {at for role, at in prompt.roles.items() if role.partition("[")[0] == name and at not in doing}
    return token


def recompute_interchange(row: EvidenceRow) -> tuple[Values, float]:
    """A group's outputs or attention as in the counterfactual, at one token of the original."""
    heads = dict(row.request.groups)[row["group"]] if row["head"] < 0 else [row.head]
    return _patched(row, row["group"], heads)


def recompute_random_groups(row: EvidenceRow) -> tuple[Values, float]:
    """The same with groups that are drawn: which heads are drawn is no measurement."""
    request = row.request
    own_group = Circuit(tuple(CircuitHead(request.group, layer, head, "readout") for layer, head in request.heads))
    draws = {"draws": request.draws, "match": "role_and_layer", "exclude": True}
    group = draw_circuits(own_group, row.plain.all_heads, **draws)[int(row["draw"])]
    return _patched(row, request.group, [(head.layer, head.head) for head in group.heads])


def _patched(row: EvidenceRow, group: Group, heads: Sequence[Head]) -> tuple[Values, float]:
    """Logits of a word before and after heads get what they have in the counterfactual."""
    plain, clean, counterfactual = row.plain, row.prompt, row.counterfactual
    puts, change, later = _interchange_puts(row, group, heads)
    word = _word(clean, counterfactual, row["word"])
    token = row.prompts.encoder.answer_token(word, row.request.answers)
    assert (word, token) == (row["text"], row["token"])
    runs = plain.answer(clean.ids), plain.run([(clean.ids, puts)]).logits[0], plain.answer(counterfactual.ids)
    before, after, other = (float(logits[token]) for logits in runs)
    values = {"before": before, "after": after, "counterfactual": other}
    size = sized(*runs, minimum=plain.scores(counterfactual.ids, [layer for layer, _ in heads]))
    return values | {"relative_change": change, "future_mass": later}, size


def _word(clean: Encoded, counterfactual: Encoded, side: str) -> str:
    """The original's answer, the counterfactual's, and what the asked box of the original holds before the swap."""
    story = clean.prompt.story
    pointed = story.objects[story.boxes.index(clean.prompt.question)]
    return {"answer": clean.prompt.answer, "new_object": counterfactual.prompt.answer, "pointed_object": pointed}[side]


def _interchange_puts(row: EvidenceRow, group: Group, heads: Sequence[Head]) -> tuple[list[Put], float, float]:
    """What is put in, how far it is from what was there, and how much of it looks at later tokens."""
    request, clean, counterfactual = row.request, row.prompt, row.counterfactual
    role = "readout" if request.mode == "paper" else ROLE_OF_GROUP[group]
    outputs = request.mode == "published" and group == "A"
    token, source_token = clean.roles[role], counterfactual.roles[role]
    puts = interchanged(row.plain, counterfactual.ids, heads, source_token, token, outputs=outputs)
    own = interchanged(row.plain, clean.ids, heads, token, token, outputs=outputs)
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
