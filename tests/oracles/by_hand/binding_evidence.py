"""Section 5 by hand: means of queries and keys, shifts along them, and real ones in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.prompts import Prompts
from rebinding.experiments.seeds import MATCHED, PUBLISHED_NOISE
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Again, moved, numbered, prompt_of, sized
from tests.oracles.by_hand.plain_model import Plain, Put

KINDS = ("box", "object")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Mean queries (slot, head, head_dim) and keys (kind, slot, head, head_dim) of some heads."""

    q: Tensor
    k: Tensor


@cache
def vectors_of(plain: Plain, prompts: Prompts, request: Any) -> Vectors:
    """Over prompts that ask for the object of each slot: queries at the readout, keys at the slot's two tokens."""
    q, k = [], []
    for slot, asked in enumerate(request.slots):
        encoded = prompts.encode(asked).prompts
        q.append(_mean(plain, "q", encoded, request.heads, "readout"))
        k.append([_mean(plain, "k", encoded, request.heads, f"context_{kind}[{slot}]") for kind in KINDS])
    by_kind = [torch.stack(some) for some in zip(*k, strict=True)]
    return Vectors(torch.stack(q), torch.stack(by_kind))


def _mean(plain: Plain, site: Any, prompts: Sequence[Encoded], heads: Any, role: str) -> Tensor:
    found = [torch.stack([_own(plain, site, one, head, one.roles[role]) for head in heads]) for one in prompts]
    return torch.stack(found).double().mean(0).float()  # (head, head_dim)


def _own(plain: Plain, site: Any, prompt: Encoded, head: tuple[int, int], at: int) -> Tensor:
    return plain.clean(prompt.ids).values[site, head[0]][0, at, plain.span(head[1])]


def of_shifts(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A condition on one prompt: slot j's mean less slot i's at the readout, and the keys of both exchanged."""
    conditions = {one.name: one for one in request.conditions}
    for index, row in numbered(rows):
        batch, draw = divmod(int(row["draw"]), request.draws)
        vectors, heads = vectors_of(plain, prompts, request.batches[batch]), request.batches[batch].heads
        add = _added(plain, request, conditions[row["condition"]], vectors, heads, row, batch, draw)
        prompt = prompt_of(prompts, request, row)
        puts = []
        for (part, place), shifts in add.items():
            at = [prompt.roles["readout"]]
            if part == "k":
                kinds = conditions[row["condition"]].kinds
                at = [prompt.roles[f"context_{kind}[{int(row[place])}]"] for kind in kinds]
            puts += [Put(part, layer, t, vector, head, True) for (layer, head), vector in shifts.items() for t in at]
        means = {"q": vectors.q, "k": vectors.k}
        sizes = [torch.stack([*some.values()]).abs().max() / means[part].abs().max() for (part, _), some in add.items()]
        far = float(max(sizes))
        yield _looked(plain, prompts, request, row, index, prompt, puts, far)


def _added(
    plain: Plain, request: Any, how: Any, vectors: Vectors, heads: Any, row: Any, batch: int, draw: int
) -> dict[tuple[Any, str], dict[tuple[int, int], Tensor]]:
    """What is added, by part (and slot, of keys) and head, as every query head sees it."""
    assert (how.on, how.query_role, how.key_offset) == ("chosen", "readout", 0)
    i, j = int(row["i"]), int(row["j"])
    keys = vectors.k[[KINDS.index(kind) for kind in how.means or how.kinds]].mean(0)  # (slot, head, head_dim)
    q, at_j, at_i = vectors.q[j] - vectors.q[i], keys[i] - keys[j], keys[j] - keys[i]
    shared = _shared(plain, request, heads)
    if how.vectors == "published_noise":
        names = (("q", q), ("k_at_j", at_j), ("k_at_i", at_i))
        q, at_j, at_i = (_published(heads, PUBLISHED_NOISE[name], real) for name, real in names)
    if how.vectors == "matched_noise":
        seed = 2 * (MATCHED + batch)
        q = _unit(request.draws, len(heads), plain.dim, seed)[draw] * q.norm(dim=-1, keepdim=True)
        units = _unit(request.draws, len(shared), plain.dim, seed + 1)[draw]
        for unit, name in zip(units, sorted(shared), strict=True):
            at_j[shared[name]] = unit * at_j[shared[name]].mean(0).norm()
        at_i = -at_j
    found: dict[tuple[Any, str], dict[tuple[int, int], Tensor]] = {}
    if how.query:
        found["q", ""] = dict(zip(heads, q, strict=True))
    for slot, vectors_there in (("j", at_j), ("i", at_i)):
        if how.keys == "both" or (how.keys == "source" and slot == "i"):
            found["k", slot] = _of_keys(plain, request, heads, shared, vectors_there)
    return found


def _shared(plain: Plain, request: Any, heads: Any) -> dict[tuple[int, int], list[int]]:
    """Which of the chosen heads have one edited key: those of a group, or each its own."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, (layer, head) in enumerate(heads):
        found.setdefault((layer, head // plain.group if request.scope == "group" else head), []).append(place)
    return found


def _of_keys(plain: Plain, request: Any, heads: Any, shared: Any, vectors: Tensor) -> dict[tuple[int, int], Tensor]:
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
    drawn = {head: torch.randn(real.shape[-1], generator=dice) for head in sorted(heads)}
    units = torch.stack([drawn[head] / drawn[head].norm() for head in heads])  # (head, head_dim)
    found: Tensor = units * real.norm(dim=-1, keepdim=True)
    return found


def _unit(draws: int, count: int, width: int, seed: int) -> Tensor:
    drawn = torch.randn(draws, count, width, generator=torch.Generator().manual_seed(seed))
    found: Tensor = drawn / drawn.norm(dim=-1, keepdim=True)  # (draw, head, head_dim)
    return found


def of_exchange(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The query of the same story asked about slot j; or the keys of slots i and j in each other's place."""
    donors = [prompts.encode(one).prompts for one in request.donors]
    for index, row in numbered(rows):
        prompt, i, j = prompt_of(prompts, request, row), int(row["i"]), int(row["j"])
        at = {(kind, slot): prompt.roles[f"context_{kind}[{slot}]"] for kind in KINDS for slot in (i, j)}
        end, puts, far = prompt.roles["readout"], [], 0.0
        donor = donors[j][request.prompts.ids.index(int(row["prompt"]))]
        swap = [(at[kind, one], at[kind, other]) for kind in KINDS for one, other in ((i, j), (j, i))]
        for head in request.heads:
            if row["condition"] == "q":
                new = [
                    (end, _own(plain, "q", prompt, head, end), _own(plain, "q", donor, head, donor.roles["readout"]))
                ]
            else:
                new = [(to, _own(plain, "k", prompt, head, to), _own(plain, "k", prompt, head, of)) for to, of in swap]
            site: Any = "q" if row["condition"] == "q" else "k"
            puts += [Put(site, head[0], to, value, head[1]) for to, _, value in new]
            if head == (row["layer"], row["head"]):
                far = max(moved(value, old) for _, old, value in new)
        yield _looked(plain, prompts, request, row, index, prompt, puts, far)


def _looked(
    plain: Plain, prompts: Prompts, request: Any, row: Any, index: int, prompt: Encoded, puts: list[Put], far: float
) -> Again:
    """A head's attention from the readout to every slot, and the logits of the objects there, without and with puts."""
    layer, head, end = int(row["layer"]), int(row["head"]), prompt.roles["readout"]
    before, after = plain.clean(prompt.ids), plain.run([(prompt.ids, puts)], attention=True)
    objects = prompt.prompt.story.objects
    tokens = [prompts.encoder.answer_token(word, request.answers) for word in objects]
    told: dict[str, float | bool | None] = {"moved": far}
    for when, seen in (("before", before), ("after", after)):
        for slot, token in enumerate(tokens):
            told[f"{when}_logit_{slot}"] = float(seen.logits[0, token])
            for kind in KINDS:
                key = prompt.roles[f"context_{kind}[{slot}]"]
                told[f"{when}_{kind}_{slot}"] = float(seen.attention[layer][0, head, end, key])
    told["correct"] = int(before.logits[0, tokens].argmax()) == row["i"]
    size = sized(before.logits, after.logits, least=plain.scores(prompt.ids, range(len(plain.layers))))
    return Again(index, told, size)
