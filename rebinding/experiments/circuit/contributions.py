"""Section 4.1 as its text has it: what is a head worth to its circuit, beside sets of other heads that are gone?

    contribution of v beside K = (F(C - K) - F(C - K - v)) / F(C - K - v), F candidate accuracy

Which sets K were looked at is not told: the text says "a subset", and the released code takes none. Ours are declared
and the same for all heads (v itself stays out of them): no other head; every whole group, whose rest is what the work
that the text cites takes; and random ones, which leave out every head with a chance of one in eight, few enough that
what is left may still answer. Heads that share a set share C - K, and a circuit that is met again is not run again.
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
"""The chance with which a random set has a head."""


def sets_beside(circuit: Circuit, random_sets: int, seed: int = WALKS) -> dict[str, tuple[CircuitHead, ...]]:
    """The sets that are gone, by name."""
    draws = random.Random(seed)
    drawn = {
        f"random {number}": tuple(head for head in circuit.heads if draws.random() < LEFT_OUT)
        for number in range(random_sets)
    }
    return {NOTHING: (), **{f"group {name}": heads for name, heads in circuit.groups.items()}, **drawn}


def contributions(
    circuit: Circuit, hits: Hits, gone: Mapping[str, tuple[CircuitHead, ...]], ids: Sequence[int]
) -> pd.DataFrame:
    """Whether each prompt is answered with a head and without it: a row per set, head and prompt."""
    pairs = {
        (name, head): (circuit.without(one for one in others if one != head), circuit.without([*others, head]))
        for name, others in gone.items()
        for head in circuit.heads
    }
    asked = list(dict.fromkeys(one for pair in pairs.values() for one in pair))
    found = dict(zip(asked, hits(asked).cpu().numpy(), strict=True))
    frames = [
        pd.DataFrame({"prompt": list(ids), "before": found[one], "without": found[less]}).assign(
            **head._asdict(), gone=name
        )
        for (name, head), (one, less) in pairs.items()
    ]
    return pd.concat(frames, ignore_index=True)
