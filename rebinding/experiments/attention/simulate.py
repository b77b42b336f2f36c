"""Attention in unedited prompts, simulated: the tokens that each group attends to according to the text.

A group gives its declared share to its own tokens, and half of an even share to every other token with a role. In the
rival's world it attends equally to all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import PromptSet
from rebinding.experiments.attention.named import names_before
from rebinding.experiments.attention.request import AttentionToRoles, ShapedAttention
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import leave_out, simulates
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import circuit
from rebinding.paper.worlds import NotSimulated, Run

Array: TypeAlias = npt.NDArray[np.float64]
TARGETS: Mapping[str, tuple[str, ...]] = {"A": ("context_partner_object",), "C": ("swap_asked",), "B": ("context_",)}
"""The target tokens of a group, by the beginning of their names: A copies the answer's object, C attends to the
appropriate earlier box, and B to boxes and objects of the context."""
SHARE = {"A": "attention", "C": "attention", "B": "mass"}
"""The name in a world of the share of these tokens."""
HEADS = 4
"""The number of heads that stand for all of a group: they are alike, and rules judge their mean."""
REST = 0.5
"""The part of an even share that every other token with a role gets."""
MOST = 0.95
"""The most attention that all tokens with a role get together."""


@simulates(AttentionToRoles)
def simulate_attention(prompts: Prompts, request: AttentionToRoles, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, head and token."""
    names, even = tokens_of(prompts, request.prompts, request.at)
    ids, heads = np.array(request.prompts.ids), np.array(request.heads[:HEADS])
    group = _group_of(request.heads, run.world.model)
    means = _means(run, group, names, even)[:, None]  # (prompt, 1, token)
    dice = run.dice("attention", group, request.at, request.prompts.design)
    shape = (len(ids), len(heads), len(names))
    of_head, of_prompt = dice.standard_normal(shape), dice.standard_normal((len(ids), 1, 1))
    spread = run.world.spreads["attention"] * means / np.sqrt(2)
    attention = np.maximum(means + spread * (of_head + of_prompt), 0.0)
    attention /= np.maximum(1.0, attention.sum(axis=2, keepdims=True) / MOST)
    width = len(heads) * len(names)
    layer, head = np.tile(np.repeat(heads, len(names), axis=0), (len(ids), 1)).T
    rows = {
        "prompt": np.repeat(ids, width),
        "token": np.tile(np.array(names, dtype=object), len(ids) * len(heads)),
        "layer": layer,
        "head": head,
        "attention": attention.ravel(),
        "uniform": np.repeat(even, width),
    }
    return pd.DataFrame(rows), {"at": request.at}


def _group_of(heads: Sequence[Head], model: str) -> str:
    """The published group of some heads."""
    groups = {(head.layer, head.head): head.group for head in circuit(model)}
    if heads[0] not in groups:
        raise NotSimulated(f"attention (head {heads[0]} is in no published group of {model})")
    return groups[heads[0]]


def _means(run: Run, group: str, names: tuple[str, ...], even: Array) -> Array:
    """The mean attention on each token, (prompt, token)."""
    is_target = np.array([name.startswith(TARGETS.get(group, ())) for name in names])
    share = run.world.mean(SHARE.get(group, "attention"))
    if run.world.name == "rival" and group != "B":
        return np.repeat(even[:, None], len(names), axis=1)
    return np.where(is_target, share / max(1, is_target.sum()), REST * even[:, None])


leave_out(ShapedAttention, "the text has no number for what D does to C's attention")


@lru_cache(maxsize=64)
def tokens_of(prompts: Prompts, request: PromptSet, at: str) -> tuple[tuple[str, ...], Array]:
    """The names of the tokens with a role before that of the heads, and an even share of attention in each prompt."""
    encoded = prompts.encode(request).prompts
    even = np.array([1 / (prompt.roles[at] + 1) for prompt in encoded])
    return tuple(names_before(encoded[0], at)), even
