"""A circuit with its arrows: which head at which token tells which other one what, and how much hangs on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from xml.sax.saxutils import quoteattr

import numpy as np

from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead, Owner

SCHEMA = 1
PARTS = ("context", "swap", "question", "readout")
"""Of a prompt; the name of every token's role begins with one of them."""
GROUPS = (("context", "E"), ("swap", "D"), ("question", "C"))
"""The part of a prompt that a token's role names, and the paper's group that stands there."""
SHOWN = 3
"""So many edges that one graph alone has are named, the strongest."""


class Node(NamedTuple):
    """A head at a token (`rebinding.task.text` names every token)."""

    layer: int
    head: int
    token: str

    def __str__(self) -> str:
        return f"{self.layer}.{self.head} at {self.token}"


def part_of(node: Node) -> str:
    """Context, swap, question or readout: the part of the prompt in which a node stands."""
    role = node.token.rpartition("@")[2]
    return next(part for part in PARTS if role.startswith(part))


class Edge(NamedTuple):
    """What a sender does to the score through one component of a receiver: mean, and interval, in logits.

    The receiver None stands for the logits, and the component is `direct` then.
    """

    sender: Node
    receiver: Node | None
    component: str
    effect: float
    low: float
    high: float


Ends: TypeAlias = tuple[Node, Node | None, str]
"""Sender, receiver, component."""


@dataclass(frozen=True)
class Graph:
    """Nodes from the answer backwards, and edges; `settings` say how they were found."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def circuit(self) -> Circuit:
        """The nodes as a circuit. Groups bear the paper's letters: A acts on the logits, B at the readout on others, C
        stands in the question, D in the swap, E in the context, at however many tokens."""
        heads = [CircuitHead(self._letter(node), node.layer, node.head, node.token) for node in self.nodes]
        return Circuit(tuple(sorted(heads)), dict(self.settings))

    def _letter(self, node: Node) -> str:
        if node.token == "readout":
            return "A" if any(edge.sender == node and edge.receiver is None for edge in self.edges) else "B"
        role = node.token.rpartition("@")[2]
        return next((letter for part, letter in GROUPS if role.startswith(part)), "R")

    def lines(self) -> list[str]:
        """The graph for people: every node with what it is told by whom, strongest first."""
        found = [f"{'the logits':28} {self._told(None)}"]
        found += [f"{node!s:28} {self._told(node) or 'none that was found'}" for node in self.nodes]
        return [*found, f"{len(self.nodes)} nodes, {len(self.edges)} edges (sender component effect in logits)"]

    def _told(self, node: Node | None) -> str:
        into = sorted((edge for edge in self.edges if edge.receiver == node), key=lambda edge: -abs(edge.effect))
        return "; ".join(f"{edge.sender} {edge.component} {edge.effect:+.2f}" for edge in into)


def save(graph: Graph, owner: Owner, path: Path) -> None:
    """Write a graph with the model that it belongs to: GraphML if the file is called so, else JSON."""
    path.write_text(_graphml(graph) if path.suffix == ".graphml" else _json(graph, owner))


def _json(graph: Graph, owner: Owner) -> str:
    model = {"name": owner.name, "fingerprint": owner.fingerprint}
    content = {"schema": SCHEMA, "model": model, **plain(graph), "settings": dict(graph.settings)}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def plain(graph: Graph) -> dict[str, Any]:
    """Nodes, and edges between the numbers of nodes, as plain JSON."""
    return {
        "nodes": [node._asdict() for node in graph.nodes],
        "edges": [
            {
                "sender": graph.nodes.index(edge.sender),
                "receiver": None if edge.receiver is None else graph.nodes.index(edge.receiver),
                **{name: getattr(edge, name) for name in ("component", "effect", "low", "high")},
            }
            for edge in graph.edges
        ],
    }


def of_plain(content: Mapping[str, Any]) -> Graph:
    """The graph that `plain` wrote, after a journey as JSON."""
    nodes = tuple(Node(int(one["layer"]), int(one["head"]), str(one["token"])) for one in content["nodes"])
    edges = tuple(
        Edge(
            nodes[one["sender"]],
            None if one["receiver"] is None else nodes[one["receiver"]],
            str(one["component"]),
            *(float(one[name]) for name in ("effect", "low", "high")),
        )
        for one in content["edges"]
    )
    return Graph(nodes, edges, dict(content.get("settings", {})))


def load(path: Path, owner: Owner) -> Graph:
    """Read a graph of this very model from JSON."""
    try:
        content = json.loads(path.read_text())
        schema, model = content["schema"], content["model"]
        found = of_plain(content)
        name, weights = model.get("name"), model["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CircuitError(f"{path} is not a graph of this project: {error!r}") from None
    if schema != SCHEMA or weights != owner.fingerprint:
        raise CircuitError(
            f"{path} has graph schema {schema} and belongs to {name}; this version reads schema {SCHEMA},"
            f" and the model is {owner.name}. Run discover --anywhere on this one."
        )
    return found


def _graphml(graph: Graph) -> str:
    keys = [("node", "layer", "int"), ("node", "head", "int"), ("node", "token", "string")]
    keys += [("edge", "component", "string")] + [("edge", name, "double") for name in ("effect", "low", "high")]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    lines += [f'<key id="{name}" for="{of}" attr.name="{name}" attr.type="{kind}"/>' for of, name, kind in keys]
    lines += ['<graph edgedefault="directed">', '<node id="logits"/>']
    for node in graph.nodes:
        lines.append(f"<node id={quoteattr(str(node))}>{_data(node._asdict())}</node>")
    for edge in graph.edges:
        ends = f"source={quoteattr(str(edge.sender))} target={quoteattr(str(edge.receiver or 'logits'))}"
        lines.append(f"<edge {ends}>{_data({name: getattr(edge, name) for _, name, _ in keys[3:]})}</edge>")
    return "\n".join([*lines, "</graph>", "</graphml>", ""])


def _data(values: Mapping[str, Any]) -> str:
    escaped = {
        name: re.sub("[<&]", lambda one: {"<": "&lt;", "&": "&amp;"}[one[0]], str(v)) for name, v in values.items()
    }
    return "".join(f'<data key="{name}">{value}</data>' for name, value in escaped.items())


def compare(here: Graph, there: Graph, name: str) -> Iterator[str]:
    """What is in two graphs of a model, found on different prompts, and how much hangs on what is not; for people. The
    other graph is called `name`.

    Counts alone mislead: an edge at the limit of what is kept is found on some prompts and not on others. So edges are
    weighed too. The share of a graph's effects, signs apart, that belongs to edges of both is near 1 where only weak
    ones differ; and where both have an edge, its two effects can be held against each other.
    """
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
