"""Binding directions of Section 5: a head's mean query and mean keys for one slot.

For a head and a slot k, `q` is its mean query at the readout of prompts whose answer stands in slot k, and `k` its mean
key at the tokens of slot k. A shift from slot i to slot j adds the difference of means, mean[j] - mean[i].

Queries and keys are the outputs of the projections, before any norm and before RoPE, where the published procedure
edits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from rebinding.experiments.tokens import positions, prompt_blocks, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Anatomy, Edit, Read, Surgeon, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.prompts import Encoded

KeyKind: TypeAlias = Literal["box", "object"]
KINDS: tuple[KeyKind, ...] = get_args(KeyKind)
"""The two tokens of a slot whose keys are shifted and read."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Mean queries (slot, head, head_dim) and keys (kind, slot, head, head_dim) of some heads, in float32."""

    heads: tuple[Head, ...]
    q: Tensor
    k: Tensor

    def of(self, heads: Sequence[Head]) -> Directions:
        """The directions of some heads, in the order of `heads`."""
        missing = [head for head in heads if head not in self.heads]
        if missing:
            raise SurgeryError(
                f"no directions for heads {missing}, only for {self.heads}; measure them for all heads that are edited"
            )
        chosen = [self.heads.index(head) for head in heads]
        return Directions(tuple(heads), self.q[:, chosen], self.k[:, :, chosen])

    def query_shift(self, i: Tensor, j: Tensor) -> Tensor:
        """The shift of queries from slot i to slot j: (case, head, head_dim)."""
        return self.q[j] - self.q[i]

    def mean_keys(self, kinds: Sequence[KeyKind]) -> Tensor:
        """Mean keys over the tokens of these kinds: (slot, head, head_dim)."""
        return self.k[[KINDS.index(kind) for kind in kinds]].mean(0)

    def key_shift(self, i: Tensor, j: Tensor, kinds: Sequence[KeyKind]) -> Tensor:
        """The shift of keys from slot i to slot j: (case, head, head_dim)."""
        means = self.mean_keys(kinds)
        return means[j] - means[i]


def measure_directions(
    surgeon: Surgeon,
    prompts: Mapping[int, Sequence[Encoded]],
    heads: Sequence[Head],
    *,
    block: int | None = None,
) -> Directions:
    """Mean queries and keys over `prompts[k]`, which ask for the object of slot k, for slots 0, 1, ..."""
    if sorted(prompts) != list(range(len(prompts))) or not all(prompts.values()):
        raise SurgeryError(f"directions need prompts for every slot 0, 1, ...; got {sorted(prompts)}")
    per_slot = [_slot_means(surgeon, prompts[slot], slot, tuple(heads), block) for slot in range(len(prompts))]
    return Directions(
        tuple(heads),
        torch.stack([q for q, _ in per_slot]),  # (slot, head, head_dim)
        torch.stack([k for _, k in per_slot], dim=1),  # (kind, slot, head, head_dim)
    )


def _slot_means(
    surgeon: Surgeon, prompts: Sequence[Encoded], slot: int, heads: tuple[Head, ...], block: int | None
) -> tuple[Tensor, Tensor]:
    wrong = [encoded for encoded in prompts if encoded.prompt.answer_slot != slot]
    if wrong:
        raise SurgeryError(
            f"{len(wrong)} of {len(prompts)} prompts given for slot {slot} have their answer in another slot, the first"
            f" in slot {wrong[0].prompt.answer_slot}; make them with design.direction(id, slot)"
        )
    q, k = torch.zeros(()), torch.zeros(())
    for part in prompt_blocks(surgeon, prompts, block):
        batch = prompts[part]
        tokens = torch.stack([positions(batch, f"context_{kind}[{slot}]") for kind in KINDS], dim=1)  # (prompt, kind)
        queries, keys = read_vectors(surgeon, batch, tokens, heads)
        q, k = q + queries.double().sum(0), k + keys.double().sum(0)
    return (q / len(prompts)).float(), (k / len(prompts)).float().transpose(0, 1)


def read_vectors(
    surgeon: Surgeon, prompts: Sequence[Encoded], tokens: Tensor, heads: Sequence[Head]
) -> tuple[Tensor, Tensor]:
    """Queries (prompt, head, head_dim) at the readout, and keys (prompt, head, token, head_dim) at some tokens
    (prompt, token), in float32. Heads narrower than the widest one end in zeros."""
    recording, shared = surgeon.record(token_batch(prompts), keep={"k"}), shared_keys(surgeon.anatomy, heads)
    reads = [
        Read("q", positions(prompts, "readout")[:, None], heads),
        Read("k", tokens, list(shared), scope="group"),
    ]
    queries, keys = (value.float().cpu() for value in surgeon.run(recording, [], reads))
    k = torch.zeros(len(prompts), len(heads), *keys.shape[2:])
    for number, places in enumerate(shared.values()):
        k[:, places] = keys[:, [number]]
    return queries[:, :, 0], k


def edit_keys(anatomy: Anatomy, heads: Sequence[Head], values: Tensor, *, at: Tensor, scope: Scope) -> Edit:
    """An edit that adds vectors (row, head, token, head_dim) to the keys of heads at tokens (row, token): to those that
    each head sees, or their mean over the given heads of a KV group to those of the group."""
    if scope == "head":
        return Edit("k", values, at, heads, mode="add", scope="head")
    keys = shared_keys(anatomy, heads)
    means = torch.stack([values[:, places].mean(1) for places in keys.values()], dim=1)
    return Edit("k", means, at, list(keys), mode="add", scope="group")


def shared_keys(anatomy: Anatomy, heads: Sequence[Head]) -> dict[Head, list[int]]:
    """The KV heads (layer, KV head) of query heads, layer by layer, each with the places in `heads` that read it."""
    keys: dict[Head, list[int]] = {}
    for place, (layer, head) in enumerate(heads):
        keys.setdefault((layer, anatomy.parts[layer].kv_head(head)), []).append(place)
    layers = list(dict.fromkeys(layer for layer, _ in heads))
    return {key: keys[key] for key in sorted(keys, key=lambda key: (layers.index(key[0]), key[1]))}


def published_noise(heads: Sequence[Head], width: int, seed: int) -> Tensor:
    """A standard normal vector for each head, scaled to norm one: (head, head_dim); drawn in (layer, head) order."""
    generator = torch.Generator().manual_seed(seed)
    vectors = {head: torch.randn(width, generator=generator) for head in sorted(heads)}
    return torch.nn.functional.normalize(torch.stack([vectors[head] for head in heads]), dim=-1)


def unit_noise(draws: int, heads: int, width: int, seed: int) -> Tensor:
    """Random directions of norm one: (draw, head, head_dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(draws, heads, width, generator=generator), dim=-1)


def within_heads(unit: Tensor, widths: Sequence[int]) -> Tensor:
    """Unit vectors (draw, head, head_dim) without the numbers beyond each head's width, of norm one again."""
    if min(widths) == unit.shape[-1]:
        return unit
    is_inside = torch.arange(unit.shape[-1]) < torch.tensor(widths)[:, None]  # (head, head_dim)
    return torch.nn.functional.normalize(unit * is_inside, dim=-1)
