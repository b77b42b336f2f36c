"""The conditions of section 5 as data: what they add, and which of them stand for rows of the table.

Under a candidate convention, rows of the table are taken from other measured conditions.

The candidates are the differences between the text and the released code; each changes one convention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from types import MappingProxyType
from typing import Literal, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.directions import (
    KINDS,
    Directions,
    KeyKind,
    published_noise,
    shared_keys,
    unit_noise,
    within_heads,
)
from rebinding.experiments.random_draws import PUBLISHED_NOISE
from rebinding.paper.circuit import Head
from rebinding.paper.procedure import CHOICE_NAMES, BindingConventions
from rebinding.surgery import Anatomy, SurgeryError
from rebinding.surgery.sites import Scope

Slots: TypeAlias = tuple[int, int]


def every_pair(slots: int) -> tuple[Slots, ...]:
    """All ordered pairs of slots."""
    return tuple(permutations(range(slots), 2))


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


RowConditions: TypeAlias = tuple[tuple[str, str], ...]
"""Rows of the table, each with the condition that stands for it; other rows keep their own condition."""


@lru_cache(maxsize=16)
def apply_candidate(evidence: Evidence, row_conditions: RowConditions) -> Evidence:
    """The evidence under a candidate: these rows of the table come from their conditions."""
    if not row_conditions:
        return evidence
    conditions = dict(evidence.settings["conditions"])
    chosen = {row: conditions[condition] for row, condition in row_conditions}  # a KeyError if it was not run
    rest = {
        name: settings_of
        for name, settings_of in conditions.items()
        if name not in {*chosen, *dict(row_conditions).values()}
    }
    settings = {**evidence.settings, "conditions": {**rest, **chosen}}
    return Evidence(evidence.experiment, select_conditions(evidence.rows, row_conditions), settings)


def select_conditions(table: pd.DataFrame, row_conditions: RowConditions) -> pd.DataFrame:
    """Select the conditions of a candidate from a table of all conditions, under the names of their rows."""
    names = {condition: row for row, condition in row_conditions}
    rest = table[~table["condition"].isin(names.values())]
    return rest.assign(condition=rest["condition"].replace(names)).reset_index(drop=True)


SOURCE: RowConditions = (("qk", QK_SOURCE.name),)
POOLED: RowConditions = tuple((condition.name.removesuffix("_pooled"), condition.name) for condition in POOLED_KEYS)
CHOICES: Mapping[str, tuple[str, RowConditions]] = MappingProxyType(
    {choice: (name, {"source": SOURCE, "both": POOLED}.get(choice, ())) for choice, name in CHOICE_NAMES.items()}
)
"""Every choice of a convention: its name in the reason of a verdict, and the conditions that are run."""
PRINTED_ROW: Mapping[str, str] = MappingProxyType({condition: row for row, condition in (*SOURCE, *POOLED)})
"""The printed row that a condition of the text may stand for."""


def conditions_of_text(conventions: BindingConventions) -> tuple[Condition, ...]:
    """The conditions to run in addition to those of the table."""
    source = (QK_SOURCE,) if "source" in conventions.qk_keys else ()
    return (*source, *(POOLED_KEYS if "both" in conventions.key_means else ()))


def row_conditions(conventions: BindingConventions) -> RowConditions:
    """The rows of the table under a candidate, each with the condition that stands for it: the first choices count."""
    return sum((CHOICES[options[0]][1] for options in (conventions.qk_keys, conventions.key_means)), start=())
