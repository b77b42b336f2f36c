"""By which tokens information leaves one part of a prompt for a later one.

A prompt has four parts: context, swap, question, readout. The paper lets one group carry from each of the first three
to the next (E, D, C), and says at which token it stands: at a label. The search is told neither. So its nodes are
asked: all those in one part as senders, those in later ones as receivers, in exact path patching as in every step of
the search (`rebinding.experiments.search.effects`). What the score loses is summed by the token that the message left
from. Both signs count: a head without which the answer gains takes away from the token where it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.search.request import CROSSINGS
from rebinding.experiments.search.search import Search
from rebinding.paper.graph import Node, part_of

LATER = ("question", "readout")
SWAP_LABELS = ("swap_first", "swap_second", "swap_asked", "swap_partner")
CONTEXT_LABELS = ("context_box", "context_asked", "context_partner")


@dataclass(frozen=True)
class Crossing:
    """From one part to others; `expected` are the names of the tokens by which the paper lets it leave."""

    name: str
    sender: str
    receivers: tuple[str, ...]
    expected: tuple[str, ...]


CROSSED = (
    Crossing("context to swap", "context", ("swap",), CONTEXT_LABELS),
    Crossing("swap to question", "swap", ("question",), SWAP_LABELS),
    Crossing("question to readout", "question", ("readout",), ("question_box",)),
    Crossing("swap to all that is later", "swap", LATER, SWAP_LABELS),
)


def crossings(search: Search, nodes: Sequence[Node]) -> Evidence:
    """Every crossing on the prompts of a search, which need not be those on which the nodes were found."""
    ids = search.pairs.ids
    frames = []
    for one in CROSSED:
        senders = [node for node in nodes if part_of(node) == one.sender]
        receivers = [node for node in nodes if part_of(node) in one.receivers]
        lost = _lost(search, senders, receivers, one.expected)
        rows = pd.DataFrame({"prompt": ids, "crossing": one.name}).join(lost, on="prompt")
        frames.append(rows.fillna({"expected": 0.0, "elsewhere": 0.0}))
    return CROSSINGS.evidence(pd.concat(frames, ignore_index=True), {"nodes": [list(node) for node in nodes]})


def _lost(
    search: Search, senders: Sequence[Node], receivers: Sequence[Node], expected: Collection[str]
) -> pd.DataFrame:
    """By prompt what is lost without messages from the expected tokens, and from all others. A prompt in which nobody
    says anything has no line."""
    able = [node for node in senders if any(node.layer < one.layer for one in receivers)]
    told = pd.DataFrame(columns=["expected", "elsewhere"], dtype=float)
    if not able:
        return told
    rows = search.step(receivers, able).rows
    here = rows["place"].str.partition("[")[0].isin(list(expected))
    lost = rows["before"] - rows["after"]
    sides = {name: lost.where(mine, 0.0) for name, mine in (("expected", here), ("elsewhere", ~here))}
    return pd.DataFrame(sides).groupby(rows["prompt"]).sum()
