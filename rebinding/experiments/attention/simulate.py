"""Attention in unedited prompts, simulated: what each group looks at, as the text says it in words.

A group gives its declared share to its own token, and half of an even share to every other token that has a role. In
the rival's world it looks at all tokens alike.
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
from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.simulation import simulates
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import circuit
from rebinding.paper.worlds import NotSimulated, Run

Array: TypeAlias = npt.NDArray[np.float64]
LOOKS_AT: Mapping[str, tuple[str, ...]] = {"A": ("context_partner_object",), "C": ("swap_asked",), "B": ("context_",)}
"""The tokens of a group, by what their names begin with: A copies the answer's object, C looks at the appropriate
earlier box, and B at boxes and objects of the context."""
SHARE = {"A": "attention", "C": "attention", "B": "mass"}
"""What the share of these tokens is called in a world."""
HEADS = 4
"""So many heads of a group stand for all: they look alike, and what is judged is their mean."""
REST = 0.5
"""Of an even share, what every other token with a role gets."""
MOST = 0.95
"""All these tokens together get no more than this share."""


@simulates(AttentionToRoles)
def simulate_attention(prompts: Prompts, request: AttentionToRoles, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, head and token."""
    names, even = tokens_of(prompts, request.prompts, request.at)
    ids, heads = np.array(request.prompts.ids), np.array(request.heads[:HEADS])
    group = _group_of(request.heads, run.world.model)
    means = _means(run, group, names, even)[:, None]  # (prompt, 1, token)
    dice = run.dice("attention", group, request.at, request.prompts.design)
    shape = (len(ids), len(heads), len(names))
    own, of_prompt = dice.standard_normal(shape), dice.standard_normal((len(ids), 1, 1))
    spread = run.world.spreads["attention"] * means / np.sqrt(2)
    found = np.maximum(means + spread * (own + of_prompt), 0.0)
    found /= np.maximum(1.0, found.sum(axis=2, keepdims=True) / MOST)
    width = len(heads) * len(names)
    layer, head = np.tile(np.repeat(heads, len(names), axis=0), (len(ids), 1)).T
    rows = {
        "prompt": np.repeat(ids, width),
        "token": np.tile(np.array(names, dtype=object), len(ids) * len(heads)),
        "layer": layer,
        "head": head,
        "attention": found.ravel(),
        "uniform": np.repeat(even, width),
    }
    return pd.DataFrame(rows), {"at": request.at}


def _group_of(heads: Sequence[Head], model: str) -> str:
    """The published group of some heads."""
    found = {(one.layer, one.head): one.group for one in circuit(model)}
    if heads[0] not in found:
        raise NotSimulated(f"attention (head {heads[0]} is in no published group of {model})")
    return found[heads[0]]


def _means(run: Run, group: str, names: tuple[str, ...], even: Array) -> Array:
    """The mean attention on each token, (prompt, token)."""
    mine = np.array([name.startswith(LOOKS_AT.get(group, ())) for name in names])
    share = run.world.mean(SHARE.get(group, "attention"))
    if run.world.name == "rival" and group != "B":
        return np.repeat(even[:, None], len(names), axis=1)
    return np.where(mine, share / max(1, mine.sum()), REST * even[:, None])


@lru_cache(maxsize=64)
def tokens_of(prompts: Prompts, shown: PromptSet, at: str) -> tuple[tuple[str, ...], Array]:
    """The names of the tokens with a role before that of the heads, and an even share of attention in each prompt."""
    encoded = prompts.drawn(shown).prompts
    even = np.array([1 / (one.roles[at] + 1) for one in encoded])
    return tuple(names_before(encoded[0], at)), even
