"""A circuit with its arrows: which head at which token tells which other one what, and how much hangs on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead, Owner

SCHEMA = 1
PARTS = ("context", "swap", "question", "readout")
"""Of a prompt; the name of every token's role begins with one of them."""
GROUPS = (("context", "E"), ("swap", "D"), ("question", "C"))
"""The part of a prompt that a token's role names, and the paper's group that stands there."""


class Node(NamedTuple):
    """A head at a token (`rebinding.world.places` names every token)."""

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
