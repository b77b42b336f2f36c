"""Crossings: the tokens by which information passes from one part of a prompt to a later one.

A prompt has four parts: context, swap, question, readout. In the paper one group carries information from each of the
first three to the next (E, D, C), at a label. The search assumes neither. So all its nodes in one part are senders and
those in later parts receivers, in exact path patching as in every step of the search
(`rebinding.experiments.search.effects`). The loss of score is summed by the token of the sender. Both signs count: a
head that works against the answer lowers the sum of its token.
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
    """A crossing from one part to others; `expected` are the names of the tokens that carry it in the paper."""

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
    """Measure every crossing on the prompts of a search, which need not be those on which the nodes were found."""
    ids = search.pairs.ids
    frames = []
    for crossing in CROSSED:
        senders = [node for node in nodes if part_of(node) == crossing.sender]
        receivers = [node for node in nodes if part_of(node) in crossing.receivers]
        losses = _losses(search, senders, receivers, crossing.expected)
        rows = pd.DataFrame({"prompt": ids, "crossing": crossing.name}).join(losses, on="prompt")
        frames.append(rows.fillna({"expected_tokens": 0.0, "other_tokens": 0.0}))
    return CROSSINGS.evidence(pd.concat(frames, ignore_index=True), {"nodes": [list(node) for node in nodes]})


def _losses(
    search: Search, senders: Sequence[Node], receivers: Sequence[Node], expected: Collection[str]
) -> pd.DataFrame:
    """The loss by prompt without senders at the expected tokens, and without all others. A prompt without effective
    senders has no line."""
    below = [node for node in senders if any(node.layer < receiver.layer for receiver in receivers)]
    nothing = pd.DataFrame(columns=["expected_tokens", "other_tokens"], dtype=float)
    if not below:
        return nothing
    rows = search.step(receivers, below).rows
    is_expected = rows["place"].str.partition("[")[0].isin(list(expected))
    loss = rows["before"] - rows["after"]
    sides = {
        name: loss.where(side, 0.0) for name, side in (("expected_tokens", is_expected), ("other_tokens", ~is_expected))
    }
    return pd.DataFrame(sides).groupby(rows["prompt"]).sum()
