"""Section 4.1 as its text has it: the contribution of a head to its circuit when a set of other heads is removed.

    contribution of v without K = (F(C - K) - F(C - K - v)) / F(C - K - v), F candidate accuracy

The paper does not list its sets K: the text says "a subset", and the released code uses none. Ours are declared and the
same for all heads (a set never contains v itself): the empty set; every whole group, so that v is removed together with
the rest of its group as in the work that the text cites; and random sets, which contain each head with a chance of one
in eight, few enough that the remaining circuit may still answer. Heads that share a set share C - K, and no circuit is
run twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pandas as pd
from torch import Tensor

from rebinding.experiments.seeds import WALKS
from rebinding.paper.circuit import Circuit, CircuitHead

Hits: TypeAlias = Callable[[Sequence[Circuit]], Tensor]
"""Whether each of many circuits answers: (circuit, prompt)."""
NOTHING = "nothing"
LEFT_OUT = 1 / 8
"""The chance that a random set contains a head."""


def removed_sets(circuit: Circuit, random_sets: int, seed: int = WALKS) -> dict[str, tuple[CircuitHead, ...]]:
    """The sets of removed heads, by name."""
    generator = random.Random(seed)
    chosen = {
        f"random {number}": tuple(head for head in circuit.heads if generator.random() < LEFT_OUT)
        for number in range(random_sets)
    }
    return {NOTHING: (), **{f"group {name}": heads for name, heads in circuit.groups.items()}, **chosen}


def contributions(
    circuit: Circuit, hits: Hits, removed_sets: Mapping[str, tuple[CircuitHead, ...]], ids: Sequence[int]
) -> pd.DataFrame:
    """Whether each prompt is answered with a head and without it: a row per set, head and prompt."""
    pairs = {
        (name, head): (circuit.without(other for other in heads if other != head), circuit.without([*heads, head]))
        for name, heads in removed_sets.items()
        for head in circuit.heads
    }
    circuits = list(dict.fromkeys(variant for pair in pairs.values() for variant in pair))
    results = dict(zip(circuits, hits(circuits).cpu().numpy(), strict=True))
    frames = [
        pd.DataFrame({"prompt": list(ids), "before": results[with_head], "without": results[without]}).assign(
            **head._asdict(), removed_set=name
        )
        for (name, head), (with_head, without) in pairs.items()
    ]
    return pd.concat(frames, ignore_index=True)
