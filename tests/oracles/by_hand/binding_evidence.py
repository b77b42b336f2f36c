"""Section 5 by hand: means of queries and keys, shifts along them, real ones in their place; keys at swaps' labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.binding.request import Exchange, Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import MATCHED, PUBLISHED_NOISE
from tests.oracles.by_hand.compare import EvidenceRow, Recompute, Values, relative_difference, sized
from tests.reference.naive.edits import by_shared_key, head_value, mean_vectors, noise_of, shared_edit
from tests.reference.naive.plain_model import Head, Plain, Put, Site

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


def recompute_shifts(row: EvidenceRow) -> tuple[Values, float]:
    """A condition on one prompt: slot j's mean less slot i's at the readout, and the keys of both exchanged."""
    plain, request, prompt = row.plain, row.request, row.prompt
    condition = next(condition for condition in request.conditions if condition.name == row["condition"])
    batch, draw = divmod(int(row["draw"]), request.draws)
    vectors = recompute_vectors(plain, row.prompts, request.batches[batch])
    add = _added_vectors(row, condition, vectors, request.batches[batch].heads, batch, draw)
    puts = []
    for (part, place), shifts in add.items():
        at = [prompt.roles["readout"]]
        if part == "k":
            at = [prompt.roles[f"context_{kind}[{int(row[place])}]"] for kind in condition.kinds]
        puts += [Put(part, layer, t, vector, head, True) for (layer, head), vector in shifts.items() for t in at]
    means = {"q": vectors.q, "k": vectors.k}
    sizes = [
        torch.stack([*changes.values()]).abs().max() / means[part].abs().max() for (part, _), changes in add.items()
    ]
    return _measure_exchange(row, puts, float(max(sizes)))


def _added_vectors(
    row: EvidenceRow, condition: Any, vectors: Vectors, heads: Any, batch: int, draw: int
) -> dict[tuple[Any, str], dict[Head, Tensor]]:
    """What is added, by part (and slot, of keys) and head, as every query head sees it."""
    plain, request, i, j = row.plain, row.request, int(row["i"]), int(row["j"])
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
    additions: dict[tuple[Any, str], dict[Head, Tensor]] = {}
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


def recompute_exchange(row: EvidenceRow) -> tuple[Values, float]:
    """The query of the same story asked about slot j; or the keys of slots i and j in each other's place."""
    plain, prompt, i, j = row.plain, row.prompt, int(row["i"]), int(row["j"])
    at = {(kind, slot): prompt.roles[f"context_{kind}[{slot}]"] for kind in KINDS for slot in (i, j)}
    site: Site = "q" if row["condition"] == "q" else "k"
    if site == "q":
        donor = row.prompts.encode(row.request.donors[j]).prompts[row.place]
        moved = [(donor, donor.roles["readout"], prompt.roles["readout"])]
    else:
        moved = [(prompt, at[kind, slot], at[kind, other]) for kind in KINDS for slot, other in ((i, j), (j, i))]
    puts = {
        head: [
            Put(site, head[0], target, head_value(plain, site, text.ids, head, source), head[1])
            for text, source, target in moved
        ]
        for head in row.request.heads
    }
    old = [head_value(plain, site, prompt.ids, row.head, target) for *_, target in moved]
    change = max(relative_difference(put.value, there) for put, there in zip(puts[row.head], old, strict=True))
    return _measure_exchange(row, [put for of_head in puts.values() for put in of_head], change)


def _measure_exchange(row: EvidenceRow, puts: list[Put], change: float) -> tuple[Values, float]:
    """A head's attention from the readout to every slot, and the logits of the objects there, without and with puts."""
    objects = row.prompt.prompt.story.objects
    keys = {f"{kind}_{slot}": f"context_{kind}[{slot}]" for slot in range(len(objects)) for kind in KINDS}
    values, size = _attend(row, puts, dict(enumerate(objects)), keys)
    logits = [values[f"before_logit_{slot}"] for slot in range(len(objects))]
    return values | {"relative_change": change, "correct": logits.index(max(logits)) == row["i"]}, size


def _attend(
    row: EvidenceRow, puts: list[Put], words: Mapping[Any, str], keys: Mapping[str, str]
) -> tuple[dict[str, float], float]:
    """Without puts and with them: logits of words, and a head's attention from the readout to roles."""
    plain, prompt, (layer, head) = row.plain, row.prompt, row.head
    runs = {"before": plain.clean(prompt.ids), "after": plain.run([(prompt.ids, puts)], attention=True)}
    values: dict[str, float] = {}
    for moment, run in runs.items():
        for slot, word in words.items():
            token = row.prompts.encoder.answer_token(word, row.request.answers)
            values[f"{moment}_logit_{slot}"] = float(run.logits[0, token])
        attention = run.attention[layer][0, head, prompt.roles["readout"]]  # (key,)
        values |= {f"{moment}_{name}": float(attention[prompt.roles[role]]) for name, role in keys.items()}
    logits = [run.logits for run in runs.values()]
    return values, sized(*logits, minimum=plain.scores(prompt.ids, range(len(plain.layers))))


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


def recompute_label_exchange(row: EvidenceRow) -> tuple[Values, float]:
    """The label of slot i gets what the mean of slot j has more, and the other way round; i is where the answer is."""
    request, prompt, i, j = row.request, row.prompt, int(row["i"]), int(row["j"])
    story, question = prompt.prompt.story, prompt.prompt.question
    assert request.scope == "head"
    assert (i, j) == (story.objects.index(prompt.prompt.answer), story.boxes.index(question))
    means = recompute_label_vectors(row.plain, row.prompts, request.batches[int(row["draw"])])
    shift, labels = means[j] - means[i], {"label_i": "swap_partner", "label_j": "swap_asked"}
    puts = [
        Put("k", layer, prompt.roles[role], sign * vector, head, add=True)
        for (layer, head), vector in zip(request.heads, shift, strict=True)
        for role, sign in zip(labels.values(), (1, -1), strict=True)
    ]
    values, size = _attend(row, puts, {"i": story.objects[i], "j": story.objects[j]}, labels)
    return values | {"relative_change": float(shift.abs().max() / means.abs().max())}, size


BY_HAND: dict[type[Request], Recompute] = {
    Shifts: recompute_shifts,
    Exchange: recompute_exchange,
    LabelExchange: recompute_label_exchange,
}
