"""Section 5 by hand: means of queries and keys, shifts along them, and real ones in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import MATCHED, PUBLISHED_NOISE
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Recomputation, find_prompt, numbered, relative_difference, sized
from tests.oracles.by_hand.plain_model import Plain, Put

KINDS = ("box", "object")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Mean queries (slot, head, head_dim) and keys (kind, slot, head, head_dim) of some heads."""

    q: Tensor
    k: Tensor


@cache
def recompute_vectors(plain: Plain, prompts: Stories, request: Any) -> Vectors:
    """Over prompts that ask for the object of each slot: queries at the readout, keys at the slot's two tokens."""
    q, k = [], []
    for slot, prompt_set in enumerate(request.slots):
        encoded = prompts.encode(prompt_set).prompts
        q.append(_mean(plain, "q", encoded, request.heads, "readout"))
        k.append([_mean(plain, "k", encoded, request.heads, f"context_{kind}[{slot}]") for kind in KINDS])
    by_kind = [torch.stack(parts) for parts in zip(*k, strict=True)]
    return Vectors(torch.stack(q), torch.stack(by_kind))


def _mean(plain: Plain, site: Any, prompts: Sequence[Encoded], heads: Any, role: str) -> Tensor:
    values = [
        torch.stack([_token_value(plain, site, prompt, head, prompt.roles[role]) for head in heads])
        for prompt in prompts
    ]
    return torch.stack(values).double().mean(0).float()  # (head, head_dim)


def _token_value(plain: Plain, site: Any, prompt: Encoded, head: tuple[int, int], at: int) -> Tensor:
    return plain.clean(prompt.ids).values[site, head[0]][0, at, plain.span(head[1])]


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
    keys = vectors.k[[KINDS.index(kind) for kind in condition.means or condition.kinds]].mean(
        0
    )  # (slot, head, head_dim)
    q, at_j, at_i = vectors.q[j] - vectors.q[i], keys[i] - keys[j], keys[j] - keys[i]
    shared = _shared(plain, request, heads)
    if condition.vectors == "published_noise":
        names = (("q", q), ("k_at_j", at_j), ("k_at_i", at_i))
        q, at_j, at_i = (_published(heads, PUBLISHED_NOISE[name], real) for name, real in names)
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
            additions["k", slot] = _share_among_keys(plain, request, heads, shared, vectors_there)
    return additions


def _shared(plain: Plain, request: Any, heads: Any) -> dict[tuple[int, int], list[int]]:
    """Which of the chosen heads have one edited key: those of a group, or each its own."""
    tokens: dict[tuple[int, int], list[int]] = {}
    for place, (layer, head) in enumerate(heads):
        tokens.setdefault((layer, head // plain.group if request.scope == "group" else head), []).append(place)
    return tokens


def _share_among_keys(
    plain: Plain, request: Any, heads: Any, shared: Any, vectors: Tensor
) -> dict[tuple[int, int], Tensor]:
    """A key that a group has in common gets the mean of its chosen heads' shifts, and all of the group see it."""
    if request.scope == "head":
        return dict(zip(heads, vectors, strict=True))
    return {
        (layer, member): vectors[places].mean(0)
        for (layer, _), places in shared.items()
        for member in plain.shares(heads[places[0]][1])
    }


def _published(heads: Any, seed: int, real: Tensor) -> Tensor:
    """A standard normal vector a head, drawn in (layer, head) order, with the norm of the real one."""
    dice = torch.Generator().manual_seed(seed)
    random_vectors = {head: torch.randn(real.shape[-1], generator=dice) for head in sorted(heads)}
    units = torch.stack([random_vectors[head] / random_vectors[head].norm() for head in heads])  # (head, head_dim)
    scaled: Tensor = units * real.norm(dim=-1, keepdim=True)
    return scaled


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
            if row["condition"] == "q":
                new = [
                    (
                        end,
                        _token_value(plain, "q", prompt, head, end),
                        _token_value(plain, "q", donor, head, donor.roles["readout"]),
                    )
                ]
            else:
                new = [
                    (
                        target,
                        _token_value(plain, "k", prompt, head, target),
                        _token_value(plain, "k", prompt, head, source),
                    )
                    for target, source in swap
                ]
            site: Any = "q" if row["condition"] == "q" else "k"
            puts += [Put(site, head[0], target, value, head[1]) for target, _, value in new]
            if head == (row["layer"], row["head"]):
                change = max(relative_difference(value, old) for _, old, value in new)
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
