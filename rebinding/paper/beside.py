"""Two graphs of a model, found on different prompts: what is in both, and how much hangs on what is not.

Counts alone mislead: an edge at the limit of what is kept is found on some prompts and not on others. So edges are
weighed too. The share of a graph's effects, signs apart, that belongs to edges of both is near 1 where only weak ones
differ; and where both have an edge, its two effects can be held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from rebinding.paper.graph import Graph, Node

Ends: TypeAlias = tuple[Node, Node | None, str]
"""Sender, receiver, component."""
SHOWN = 3
"""So many edges of one graph alone are named, the strongest."""


def beside(here: Graph, there: Graph, name: str) -> Iterator[str]:
    """Another graph, called `name`, beside this one, for people."""
    ours, theirs = _edges(here), _edges(there)
    both = sorted(ours.keys() & theirs.keys(), key=str)
    yield f"beside {name}: {_prompts(here, there)}"
    shared = set(here.nodes) & set(there.nodes)
    yield f"  nodes: {len(shared)} in both, of {len(here.nodes)} here and {len(there.nodes)} there"
    for where, graph in (("here", here), ("there", there)):
        if alone := [str(node) for node in graph.nodes if node not in shared]:
            yield f"    {where} alone: {', '.join(alone)}"
    yield f"  edges: {len(both)} in both, of {len(ours)} here and {len(theirs)} there"
    for where, edges in (("here", ours), ("there", theirs)):
        yield f"    {_share(edges, both):.2f} of the effects {where} is in those{_strongest(edges, both)}"
    if len(both) > 2:
        pairs = np.array([(ours[one], theirs[one]) for one in both])  # (edge, graph)
        apart = float(np.median(np.abs(pairs[:, 0] - pairs[:, 1])))
        alike = np.corrcoef(pairs.T)[0, 1]
        yield f"    their effects, here against there: correlation {alike:.3f}, half within {apart:.2f}"


def _edges(graph: Graph) -> dict[Ends, float]:
    return {(edge.sender, edge.receiver, edge.component): edge.effect for edge in graph.edges}


def _prompts(here: Graph, there: Graph) -> str:
    """Whether the two were found on the same prompts; ids of different designs are different prompts."""
    try:
        (design, ours), (another, theirs) = (
            (
                one.settings["design"],
                range(one.settings["first_id"], one.settings["first_id"] + one.settings["prompts"]),
            )
            for one in (here, there)
        )
    except KeyError:
        return "on prompts that its file does not tell"
    same = set(ours) & set(theirs) if design == another else set()
    return f"found on {len(theirs)} prompts, of which {len(same)} are among the {len(ours)} here"


def _share(edges: Mapping[Ends, float], both: list[Ends]) -> float:
    whole = sum(map(abs, edges.values()))
    return sum(abs(edges[one]) for one in both) / whole if whole else 1.0


def _strongest(edges: Mapping[Ends, float], both: list[Ends]) -> str:
    """The strongest edges that are not in both."""
    alone = sorted(edges.keys() - set(both), key=lambda one: (-abs(edges[one]), str(one)))[:SHOWN]
    told = (
        f"{sender} to {receiver or 'the logits'} {part} {edges[sender, receiver, part]:+.2f}"
        for sender, receiver, part in alone
    )
    return f"; the rest begins with {'; '.join(told)}" if alone else ""
