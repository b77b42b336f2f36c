"""The search that is not told where to look beside edge attribution patching: `python -m benchmarks.against_gradients`.

On plants the true edges are known. An edge here is a head at a kind of token, a later head or the logits, and a
component. Of the approximation two thresholds are told: the one that the search has, and the one that is best when the
truth is known, which nobody has. Either way edges from which no way leads to the logits are dropped. The search is then
run again on other prompts, and the share of edges is told that both runs have. Processor seconds, one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import process_time
from typing import Any, TypeVar

import torch

from benchmarks.edges import Link, attributed, keys_apart, kind_of
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.search.effects import EDGE_SHARE
from rebinding.experiments.search.measure import search_pairs
from rebinding.experiments.search.pairs import Pairs
from rebinding.experiments.search.request import Settings
from rebinding.experiments.search.scene import scene
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.paper.graph import Node
from rebinding.planted import build, parse
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.prompts import Encoder
from tests.planted.graph import wired

PLANTS = ("pointer@llama", "global@llama", "lexical@llama", "pointer+at_stop@llama")
PROMPTS, SHARE = 36, 0.002
Out = TypeVar("Out")


def links(found: Iterable[tuple[Node, Node | None, str]], pairs: Pairs) -> frozenset[Link]:
    """Edges without the token of the receiver and the number of the statement; a token that is named by what it is for
    stands at several places."""
    return frozenset(
        (
            (sender.layer, sender.head, kind_of(pairs.places[at])),
            receiver and (receiver.layer, receiver.head),
            component,
        )
        for sender, receiver, component in found
        for at in pairs.at(sender.token).tolist()
        if at >= 0
    )


def leading(links: Iterable[Link]) -> frozenset[Link]:
    """The edges from which others lead on to the logits."""
    left = frozenset(links)
    while True:
        senders = {(layer, head) for (layer, head, _), _, _ in left}
        fewer = frozenset(one for one in left if one[1] is None or one[1] in senders)
        if fewer == left:
            return left
        left = fewer


def rates(found: frozenset[Link], true: frozenset[Link]) -> tuple[float, float]:
    """Precision and recall."""
    hits = len(found & true)
    return hits / max(len(found), 1), hits / len(true)


def best(sizes: Mapping[Link, float], true: frozenset[Link]) -> frozenset[Link]:
    """What is found at the threshold with the best harmonic mean of precision and recall."""

    def mean(found: frozenset[Link]) -> float:
        return 2 * len(found & true) / (len(found) + len(true))

    every = [leading(one for one in sizes if sizes[one] >= size) for size in {sizes[one] for one in true} - {0.0}]
    return max(every, key=mean)


def timed(work: Callable[[], Out]) -> tuple[Out, float]:
    """What comes of it, and processor seconds."""
    start = process_time()
    return work(), process_time() - start


def searched(plant: Any, first: int) -> tuple[frozenset[Link], Search]:
    """The edges that the search finds on prompts from id `first` on."""
    prompts = Prompts(Encoder(plant.tokenizer))
    ids = range(first, first + PROMPTS)
    drawn = prompts.encode(prompts.draw(prompts.design("counterbalanced"), ids, ("noise", "independent")))
    pairs, surgeon = search_pairs(prompts.encoder, drawn), TorchSurgeon(plant.model, derive(plant.model))
    search = Search(pairs, Settings(SHARE, block=PROMPTS), MeasuredSteps(surgeon, pairs, PROMPTS))
    return links((one[:3] for one in search.graph().edges), pairs), search


def approximated(plant: Any, search: Search) -> Mapping[Link, float]:
    """Every edge by a gradient, on the same prompts; recording them is part of it."""
    return attributed(keys_apart(plant.model), scene(TorchSurgeon(plant.model, derive(plant.model)), search.pairs))


def main(names: Iterable[str]) -> None:
    """Lines of a plant: the search, the approximation at either threshold, and the search on other prompts."""
    torch.set_num_threads(1)
    for name in names:
        plant = build(parse(name))
        (ours, search), took = timed(partial(searched, plant, 0))
        true = links(wired(plant, search.pairs.clean[0]).links, search.pairs)
        sizes, theirs = timed(partial(approximated, plant, search))
        min_effect = EDGE_SHARE * SHARE * abs(search.total_loss)
        fixed = leading(one for one, size in sizes.items() if size >= min_effect)
        for how, found, spent in (
            ("exact search", ours, took),
            ("gradients, the same threshold", fixed, theirs),
            ("gradients, the best threshold", best(sizes, true), theirs),
        ):
            precision, recall = rates(found, true)
            print(f"{name:22} {how:30} {len(found):5} edges of {len(true)}, precision {precision:.2f}, recall", end=" ")
            print(f"{recall:.2f}, {spent:.1f} s", flush=True)
        again, _ = searched(plant, PROMPTS)
        print(
            f"{name:22} on other prompts {len(again)} edges; {len(again & ours)} of {len(again | ours)} in both",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or PLANTS)
