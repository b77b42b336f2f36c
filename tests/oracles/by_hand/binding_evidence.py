"""Section 5 by hand: means of queries and keys, shifts along them, real ones in their place; keys at swaps' labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.binding.request import Exchange, Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import MATCHED, PUBLISHED_NOISE
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Recomputation, Recompute, find_prompt, numbered, relative_difference, sized
from tests.reference.naive.edits import by_shared_key, head_value, mean_vectors, noise_of, shared_edit
from tests.reference.naive.plain_model import Plain, Put, Site

KINDS = ("box", "object")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Mean queries (slot, head, head_dim) and keys (kind, slot, head, head_dim) of some heads."""

    q: Tensor
    k: Tensor


def key_roles(slot: int) -> list[str]:
    """The roles of a slot's two tokens."""
    return [f"context_{kind}[{slot}]" for kind in KINDS]


@cache
def recompute_vectors(plain: Plain, prompts: Stories, request: Any) -> Vectors:
    """Over prompts that ask for the object of each slot: queries at the readout, keys at the slot's two tokens."""
    q, k = [], []
    for slot, prompt_set in enumerate(request.slots):
        encoded = prompts.encode(prompt_set).prompts
        places = {
            role: [(prompt.ids, prompt.roles[role]) for prompt in encoded] for role in ("readout", *key_roles(slot))
        }
        q.append(mean_vectors(plain, "q", request.heads, places["readout"]))
        k.append([mean_vectors(plain, "k", request.heads, places[role]) for role in key_roles(slot)])
    by_kind = [torch.stack(parts) for parts in zip(*k, strict=True)]
    return Vectors(torch.stack(q), torch.stack(by_kind))


def recompute_shifts(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A condition on one prompt: slot j's mean less slot i's at the readout, and the keys of both exchanged."""
    conditions = {condition.name: condition for condition in request.conditions}
    for index, row in numbered(rows):
        batch, draw = divmod(int(row["draw"]), request.draws)
        vectors, heads = recompute_vectors(plain, prompts, request.batches[batch]), request.batches[batch].heads
        add = _added_vectors(plain, request, conditions[row["condition"]], vectors, heads, row, batch, draw)
        prompt = find_prompt(prompts, request, row)
        puts = []
        for (part, place), shifts in add.items():
            at = [prompt.roles["readout"]]
            if part == "k":
                kinds = conditions[row["condition"]].kinds
                at = [prompt.roles[f"context_{kind}[{int(row[place])}]"] for kind in kinds]
            puts += [Put(part, layer, t, vector, head, True) for (layer, head), vector in shifts.items() for t in at]
        means = {"q": vectors.q, "k": vectors.k}
        sizes = [
            torch.stack([*changes.values()]).abs().max() / means[part].abs().max() for (part, _), changes in add.items()
        ]
        change = float(max(sizes))
        yield _measure_exchange(plain, prompts, request, row, index, prompt, puts, change)


def _added_vectors(
    plain: Plain, request: Any, condition: Any, vectors: Vectors, heads: Any, row: Any, batch: int, draw: int
) -> dict[tuple[Any, str], dict[tuple[int, int], Tensor]]:
    """What is added, by part (and slot, of keys) and head, as every query head sees it."""
    i, j = int(row["i"]), int(row["j"])
    kinds = [KINDS.index(kind) for kind in condition.means or condition.kinds]
    keys = vectors.k[kinds].mean(0)  # (slot, head, head_dim)
    q, at_j, at_i = vectors.q[j] - vectors.q[i], keys[i] - keys[j], keys[j] - keys[i]
    grouped = request.scope == "group"
    shared = by_shared_key(plain, heads) if grouped else {head: [at] for at, head in enumerate(heads)}
    if condition.vectors == "published_noise":
        names = (("q", q), ("k_at_j", at_j), ("k_at_i", at_i))
        q, at_j, at_i = (noise_of(heads, real, PUBLISHED_NOISE[name]) for name, real in names)
    if condition.vectors == "matched_noise":
        seed = 2 * (MATCHED + batch)
        q = _unit(request.draws, len(heads), plain.dim, seed)[draw] * q.norm(dim=-1, keepdim=True)
        units = _unit(request.draws, len(shared), plain.dim, seed + 1)[draw]
        for unit, name in zip(units, sorted(shared), strict=True):
            at_j[shared[name]] = unit * at_j[shared[name]].mean(0).norm()
        at_i = -at_j
    additions: dict[tuple[Any, str], dict[tuple[int, int], Tensor]] = {}
    if condition.query:
        additions["q", ""] = dict(zip(heads, q, strict=True))
    for slot, vectors_there in (("j", at_j), ("i", at_i)):
        if condition.keys == "both" or (condition.keys == "source" and slot == "i"):
            additions["k", slot] = (
                shared_edit(plain, heads, vectors_there) if grouped else dict(zip(heads, vectors_there, strict=True))
            )
    return additions


def _unit(draws: int, count: int, width: int, seed: int) -> Tensor:
    random_vectors = torch.randn(draws, count, width, generator=torch.Generator().manual_seed(seed))
    unit_vectors: Tensor = random_vectors / random_vectors.norm(dim=-1, keepdim=True)  # (draw, head, head_dim)
    return unit_vectors


def recompute_exchange(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The query of the same story asked about slot j; or the keys of slots i and j in each other's place."""
    donors = [prompts.encode(donor).prompts for donor in request.donors]
    for index, row in numbered(rows):
        prompt, i, j = find_prompt(prompts, request, row), int(row["i"]), int(row["j"])
        at = {(kind, slot): prompt.roles[f"context_{kind}[{slot}]"] for kind in KINDS for slot in (i, j)}
        end, puts, change = prompt.roles["readout"], [], 0.0
        donor = donors[j][request.prompts.ids.index(int(row["prompt"]))]
        swap = [(at[kind, slot], at[kind, other_slot]) for kind in KINDS for slot, other_slot in ((i, j), (j, i))]
        for head in request.heads:
            site: Site = "q" if row["condition"] == "q" else "k"
            moved = [(donor, donor.roles["readout"], end)] if site == "q" else [(prompt, *tokens) for tokens in swap]
            new = [
                Put(site, head[0], target, head_value(plain, site, text.ids, head, source), head[1])
                for text, source, target in moved
            ]
            puts += new
            if head == (row["layer"], row["head"]):
                old = [head_value(plain, site, prompt.ids, head, target) for *_, target in moved]
                change = max(relative_difference(put.value, there) for put, there in zip(new, old, strict=True))
        yield _measure_exchange(plain, prompts, request, row, index, prompt, puts, change)


def _measure_exchange(
    plain: Plain, prompts: Stories, request: Any, row: Any, index: int, prompt: Encoded, puts: list[Put], change: float
) -> Recomputation:
    """A head's attention from the readout to every slot, and the logits of the objects there, without and with puts."""
    layer, head, end = int(row["layer"]), int(row["head"]), prompt.roles["readout"]
    before, after = plain.clean(prompt.ids), plain.run([(prompt.ids, puts)], attention=True)
    objects = prompt.prompt.story.objects
    tokens = [prompts.encoder.answer_token(word, request.answers) for word in objects]
    values: dict[str, float | bool | None] = {"relative_change": change}
    for moment, pattern in (("before", before), ("after", after)):
        for slot, token in enumerate(tokens):
            values[f"{moment}_logit_{slot}"] = float(pattern.logits[0, token])
            for kind in KINDS:
                key = prompt.roles[f"context_{kind}[{slot}]"]
                values[f"{moment}_{kind}_{slot}"] = float(pattern.attention[layer][0, head, end, key])
    values["correct"] = int(before.logits[0, tokens].argmax()) == row["i"]
    size = sized(before.logits, after.logits, minimum=plain.scores(prompt.ids, range(len(plain.layers))))
    return Recomputation(index, values, size)


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


BY_HAND: dict[type[Request], Recompute] = {
    Shifts: recompute_shifts,
    Exchange: recompute_exchange,
    LabelExchange: recompute_label_exchange,
}
