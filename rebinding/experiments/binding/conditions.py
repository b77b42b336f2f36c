"""The conditions of Section 5 as data, and the vectors that each condition adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rebinding.experiments.binding.directions import (
    KINDS,
    Directions,
    KeyKind,
    published_noise,
    shared_keys,
    unit_noise,
    within_heads,
)
from rebinding.experiments.seeds import PUBLISHED_NOISE
from rebinding.paper.circuit import Head
from rebinding.surgery import Anatomy, SurgeryError
from rebinding.surgery.sites import Scope

Vectors: TypeAlias = Literal["binding", "published_noise", "matched_noise"]


@dataclass(frozen=True)
class Condition:
    """One row of the table: what is shifted, where, and by which vectors.

    `keys="both"` exchanges the keys of slots j and i, as published; `"source"` shifts the keys of slot i only, as the
    text says of Q+K. `means` are the kinds of tokens that key directions average over; if empty, the kinds that are
    shifted, as published. `published_noise` are the published random vectors: independent at the two slots, with the
    norm of each head's own shift. `matched_noise` are many draws, opposite at the two slots, with the norm of the edit
    that acts if heads share a key.
    """

    name: str
    query: bool = False
    keys: Literal["none", "both", "source"] = "none"
    kinds: tuple[KeyKind, ...] = KINDS
    means: tuple[KeyKind, ...] = ()
    vectors: Vectors = "binding"

    def __post_init__(self) -> None:
        if not self.query and self.keys == "none":
            raise SurgeryError(f"condition {self.name!r} edits nothing; give query=True or keys='both'")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds) or set(self.kinds) - set(KINDS):
            raise SurgeryError(f"condition {self.name!r}: kinds are one or both of {KINDS}; got {self.kinds}")


Q, K, QK = Condition("q", query=True), Condition("k_both", keys="both"), Condition("qk", query=True, keys="both")
K_BOX, K_OBJECT = replace(K, name="k_box", kinds=("box",)), replace(K, name="k_object", kinds=("object",))


def with_vectors(vectors: Vectors, prefix: str) -> tuple[Condition, ...]:
    """Q, K and Q+K with other vectors."""
    return tuple(replace(row, name=f"{prefix}_{row.name.removesuffix('_both')}", vectors=vectors) for row in (Q, K, QK))


TABLE = (Q, K, K_BOX, K_OBJECT, QK)
PUBLISHED_RANDOM = with_vectors("published_noise", "random")
PUBLISHED_CONDITIONS = (*TABLE, *PUBLISHED_RANDOM)
"""The rows of the published table; the paper does not say which of the three random rows is the printed "Random"."""

MATCHED_RANDOM = with_vectors("matched_noise", "matched")
MATCHED_KINDS = tuple(replace(row, name=f"matched_{row.name}", vectors="matched_noise") for row in (K_BOX, K_OBJECT))
"""Random directions as long as the shift of one kind of keys alone."""
QK_SOURCE = replace(QK, name="qk_source", keys="source")
"""Q+K as the text has it: shift the keys of slot i and not those of slot j."""
POOLED_KEYS = tuple(replace(row, name=f"{row.name}_pooled", means=KINDS) for row in (K_BOX, K_OBJECT))
"""One kind of keys as the text has it: shifted along means over both kinds."""


@dataclass(frozen=True, eq=False)
class Shift:
    """The vectors that a condition adds to queries, to keys of slot j and to keys of slot i: (draw, case, head,
    head_dim)."""

    q: Tensor | None
    at_j: Tensor | None
    at_i: Tensor | None

    def relative_change(self, directions: Directions, anatomy: Anatomy, heads: Sequence[Head], scope: Scope) -> Tensor:
        """The largest number added to these heads, as a share of the largest measured mean: (draw, case). A key that
        heads share gets the mean of their vectors, which may be zero."""
        keys = [vectors for vectors in (self.at_j, self.at_i) if vectors is not None]
        edits = [_in_groups(anatomy, heads, vectors) for vectors in keys] if scope == "group" else keys
        sizes = [vectors.abs().amax(dim=(2, 3)) / directions.k.abs().amax() for vectors in edits]
        if self.q is not None:
            sizes.append(self.q.abs().amax(dim=(2, 3)) / directions.q.abs().amax())
        return torch.stack(sizes).amax(dim=0)

    @property
    def draws(self) -> int:
        """The number of runs of the condition on every case."""
        return next(len(vectors) for vectors in (self.q, self.at_i) if vectors is not None)


def shift_of(
    condition: Condition,
    directions: Directions,
    anatomy: Anatomy,
    i: Tensor,
    j: Tensor,
    *,
    scope: Scope,
    draws: int,
    seed: int,
) -> Shift:
    """The vectors of a condition for cases (i, j); `directions` are those of the heads to edit."""
    q, at_j = directions.query_shift(i, j), directions.key_shift(j, i, condition.means or condition.kinds)
    at_i = -at_j
    widths = [anatomy.parts[layer].head_dim for layer, _ in directions.heads]
    match condition.vectors:
        case "binding":
            q, at_j, at_i = q[None], at_j[None], at_i[None]
        case "published_noise":
            q, at_j, at_i = (
                _scaled(
                    within_heads(published_noise(directions.heads, q.shape[-1], PUBLISHED_NOISE[name])[None], widths),
                    real,
                )
                for name, real in (("q", q), ("k_at_j", at_j), ("k_at_i", at_i))
            )
        case "matched_noise":
            q = _scaled(within_heads(unit_noise(draws, len(directions.heads), q.shape[-1], 2 * seed), widths), q)
            at_j = _matched_keys(directions.heads, anatomy, at_j, scope, draws, 2 * seed + 1)
            at_i = -at_j
    return Shift(
        q if condition.query else None,
        at_j if condition.keys == "both" else None,
        at_i if condition.keys != "none" else None,
    )


def _in_groups(anatomy: Anatomy, heads: Sequence[Head], vectors: Tensor) -> Tensor:
    """Means of vectors (draw, case, head, head_dim) over the heads that share a key: (draw, case, key, head_dim)."""
    keys = shared_keys(anatomy, heads)
    return torch.stack([vectors[:, :, places].mean(2) for places in keys.values()], dim=2)


def _scaled(unit: Tensor, real: Tensor) -> Tensor:
    """Unit vectors (draw, head, head_dim) scaled to the norms of real vectors (case, head, head_dim)."""
    norms: Tensor = real.norm(dim=-1, keepdim=True)
    return unit[:, None] * norms  # (draw, case, head, head_dim)


def _matched_keys(heads: Sequence[Head], anatomy: Anatomy, real: Tensor, scope: Scope, draws: int, seed: int) -> Tensor:
    """One random vector for each edited key, the same for all chosen heads that share the key."""
    keys = [(layer, anatomy.parts[layer].kv_head(head) if scope == "group" else head) for layer, head in heads]
    names = sorted(set(keys))
    owner = [names.index(key) for key in keys]
    means = [real[:, [place for place, key in enumerate(owner) if key == name]].mean(1) for name in range(len(names))]
    noise = unit_noise(draws, len(names), real.shape[-1], seed)  # (draw, key, head_dim)
    widths = [anatomy.parts[layer].head_dim for layer, _ in names]
    return _scaled(within_heads(noise, widths), torch.stack(means, dim=1))[:, :, owner]
