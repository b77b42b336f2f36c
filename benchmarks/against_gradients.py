"""Position-free discovery against edge attribution patching: `python -m benchmarks.against_gradients`.

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

from benchmarks.edges import Link, attributed, classify_place, separate_keys
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.measure import search_pairs
from rebinding.experiments.search.pairs import SearchPairs, record_pairs
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import EDGE_SHARE, MeasuredSteps, Search
from rebinding.planted import build, parse
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.prompts import Encoder
from tests.planted.graph import wired

PLANTS = ("pointer@llama", "global@llama", "lexical@llama", "pointer+at_stop@llama")
PROMPTS, SHARE = 36, 0.002
Out = TypeVar("Out")


def links(edges: Iterable[tuple[Node, Node | None, str]], pairs: SearchPairs) -> frozenset[Link]:
    """Edges without the token of the receiver and the number of the statement; a token that is named by what it is for
    stands at several places."""
    return frozenset(
        (
            (sender.layer, sender.head, classify_place(pairs.places[at])),
            receiver and (receiver.layer, receiver.head),
            component,
        )
        for sender, receiver, component in edges
        for at in pairs.at(sender.token).tolist()
        if at >= 0
    )


def leading(links: Iterable[Link]) -> frozenset[Link]:
    """The edges from which others lead on to the logits."""
    remaining = frozenset(links)
    while True:
        senders = {(layer, head) for (layer, head, _), _, _ in remaining}
        fewer = frozenset(link for link in remaining if link[1] is None or link[1] in senders)
        if fewer == remaining:
            return remaining
        remaining = fewer


def rates(links: frozenset[Link], true: frozenset[Link]) -> tuple[float, float]:
    """Precision and recall."""
    hits = len(links & true)
    return hits / max(len(links), 1), hits / len(true)


def best(sizes: Mapping[Link, float], true: frozenset[Link]) -> frozenset[Link]:
    """What is found at the threshold with the best harmonic mean of precision and recall."""

    def mean(links: frozenset[Link]) -> float:
        return 2 * len(links & true) / (len(links) + len(true))

    thresholds = [
        leading(link for link in sizes if sizes[link] >= size) for size in {sizes[link] for link in true} - {0.0}
    ]
    return max(thresholds, key=mean)


def timed(work: Callable[[], Out]) -> tuple[Out, float]:
    """What comes of it, and processor seconds."""
    start = process_time()
    return work(), process_time() - start


def searched(plant: Any, first: int) -> tuple[frozenset[Link], Search]:
    """The edges that the search finds on prompts from id `first` on."""
    prompts = Stories(Encoder(plant.tokenizer))
    ids = range(first, first + PROMPTS)
    encoded = prompts.encode(prompts.draw(prompts.design("counterbalanced"), ids, ("noise", "independent")))
    pairs, surgeon = search_pairs(prompts.encoder, encoded), TorchSurgeon(plant.model, derive(plant.model))
    search = Search(pairs, SearchSettings(SHARE, block=PROMPTS), MeasuredSteps(surgeon, pairs, PROMPTS))
    return links((edge[:3] for edge in search.graph().edges), pairs), search


def approximated(plant: Any, search: Search) -> Mapping[Link, float]:
    """Every edge by a gradient, on the same prompts; recording them is part of it."""
    return attributed(
        separate_keys(plant.model), record_pairs(TorchSurgeon(plant.model, derive(plant.model)), search.pairs)
    )


def main(names: Iterable[str]) -> None:
    """Lines of a plant: the search, the approximation at either threshold, and the search on other prompts."""
    torch.set_num_threads(1)
    for name in names:
        plant = build(parse(name))
        (actual, search), seconds = timed(partial(searched, plant, 0))
        true = links(wired(plant, search.pairs.clean[0]).links, search.pairs)
        sizes, gradient_seconds = timed(partial(approximated, plant, search))
        min_effect = EDGE_SHARE * SHARE * abs(search.total_loss)
        fixed = leading(link for link, size in sizes.items() if size >= min_effect)
        for method, found_links, cost in (
            ("exact search", actual, seconds),
            ("gradients, the same threshold", fixed, gradient_seconds),
            ("gradients, the best threshold", best(sizes, true), gradient_seconds),
        ):
            precision, recall = rates(found_links, true)
            print(
                f"{name:22} {method:30} {len(found_links):5} edges of {len(true)}, precision {precision:.2f}, recall",
                end=" ",
            )
            print(f"{recall:.2f}, {cost:.1f} s", flush=True)
        second, _ = searched(plant, PROMPTS)
        print(
            f"{name:22} on other prompts {len(second)} edges; {len(second & actual)} of {len(second | actual)} in both",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or PLANTS)
