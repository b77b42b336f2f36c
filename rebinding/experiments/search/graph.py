"""A graph: heads at tokens as nodes, the effects of senders on receivers as edges; its files, and a comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from xml.sax.saxutils import quoteattr

import numpy as np

from rebinding.paper.circuit import MLP, Circuit, CircuitError, CircuitHead, Owner, head_name, head_number

SCHEMA = 1
PARTS = ("context", "swap", "question", "readout")
"""Parts of a prompt; the name of every token's role begins with one of them."""
GROUPS = (("context", "E"), ("swap", "D"), ("question", "C"))
"""Parts of a prompt, each with the paper's group that acts there."""
SHOWN = 3
"""The number of edges in only one graph that are named, the strongest first."""


class Node(NamedTuple):
    """A head, or the MLP of a layer (`head` is `MLP`), at a token (`rebinding.task.text` names every token)."""

    layer: int
    head: int
    token: str

    def __str__(self) -> str:
        return f"{head_name(self.layer, self.head)} at {self.token}"


def part_of(node: Node) -> str:
    """The part of the prompt of a node's token: context, swap, question or readout."""
    role = node.token.rpartition("@")[2]
    return next(part for part in PARTS if role.startswith(part))


class Edge(NamedTuple):
    """The effect of a sender on the score via one component of a receiver: mean and interval, in logits.

    The receiver None means the logits, with the component `direct`.
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
    """Nodes from the answer backwards, and edges; `settings` describe their discovery."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def circuit(self) -> Circuit:
        """The nodes as a circuit. Groups have the paper's letters: A is at the readout and acts on the logits, B is at
        the readout and acts on other heads, C is in the question, D in the swap, E in the context."""
        heads = [CircuitHead(self._letter(node), node.layer, node.head, node.token) for node in self.nodes]
        return Circuit(tuple(sorted(heads)), dict(self.settings))

    def _letter(self, node: Node) -> str:
        if node.token == "readout":
            return "A" if any(edge.sender == node and edge.receiver is None for edge in self.edges) else "B"
        role = node.token.rpartition("@")[2]
        return next((letter for part, letter in GROUPS if role.startswith(part)), "R")

    def lines(self) -> list[str]:
        """The graph as text: every node with its incoming edges, strongest first."""
        nodes = [f"{'the logits':28} {self._inputs_text(None)}"]
        nodes += [f"{node!s:28} {self._inputs_text(node) or 'none that was found'}" for node in self.nodes]
        return [*nodes, f"{len(self.nodes)} nodes, {len(self.edges)} edges (sender component effect in logits)"]

    def _inputs_text(self, node: Node | None) -> str:
        into = sorted((edge for edge in self.edges if edge.receiver == node), key=lambda edge: -abs(edge.effect))
        return "; ".join(f"{edge.sender} {edge.component} {edge.effect:+.2f}" for edge in into)


def save(graph: Graph, owner: Owner, path: Path) -> None:
    """Write a graph and its model: GraphML for the suffix .graphml, else JSON."""
    path.write_text(_graphml(graph) if path.suffix == ".graphml" else to_json(graph, owner))


def to_json(graph: Graph, owner: Owner) -> str:
    """A graph and its model as JSON (`schemas/graph.json`)."""
    model = {"name": owner.name, "fingerprint": owner.fingerprint}
    content = {"schema": SCHEMA, "model": model, **plain(graph), "settings": dict(graph.settings)}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def plain(graph: Graph) -> dict[str, Any]:
    """Nodes, and edges between the numbers of nodes, as plain JSON."""
    return {
        "nodes": [node._asdict() | ({"head": "mlp"} if node.head == MLP else {}) for node in graph.nodes],
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
    """The graph from what `plain` wrote as JSON."""
    nodes = tuple(Node(int(node["layer"]), head_number(node["head"]), str(node["token"])) for node in content["nodes"])
    edges = tuple(
        Edge(
            nodes[edge["sender"]],
            None if edge["receiver"] is None else nodes[edge["receiver"]],
            str(edge["component"]),
            *(float(edge[name]) for name in ("effect", "low", "high")),
        )
        for edge in content["edges"]
    )
    return Graph(nodes, edges, dict(content.get("settings", {})))


def load(path: Path, owner: Owner) -> Graph:
    """Read a graph of this model from JSON; raise a CircuitError for any other file."""
    try:
        content = json.loads(path.read_text())
        schema, model = content["schema"], content["model"]
        graph = of_plain(content)
        name, weights = model.get("name"), model["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CircuitError(f"{path} is not a graph of this project: {error!r}") from None
    if schema != SCHEMA or weights != owner.fingerprint:
        raise CircuitError(
            f"{path} has graph schema {schema} and belongs to {name}; this version reads schema {SCHEMA},"
            f" and the model is {owner.name}. Run discover --positions all on this one."
        )
    return graph


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
        name: re.sub("[<&]", lambda match: {"<": "&lt;", "&": "&amp;"}[match[0]], str(v)) for name, v in values.items()
    }
    return "".join(f'<data key="{name}">{value}</data>' for name, value in escaped.items())


def compare(first: Graph, second: Graph, name: str) -> Iterator[str]:
    """Compare two graphs of a model, found on different prompts, as text: shared nodes and edges, and their effects.
    The second graph, `there` in the text, is in the file `name`.

    Counts alone mislead: an edge near the threshold is found on some prompts and not on others. So edges are weighted
    by their effects. The share of a graph's absolute effects that belongs to shared edges is near 1 where only weak
    edges differ; and the two effects of a shared edge are compared.
    """
    first_edges, second_edges = _edges(first), _edges(second)
    shared_edges = sorted(first_edges.keys() & second_edges.keys(), key=str)
    yield f"compared with {name}: {_prompts(first, second)}"
    shared = set(first.nodes) & set(second.nodes)
    yield f"  nodes: {len(shared)} in both, of {len(first.nodes)} here and {len(second.nodes)} there"
    for where, graph in (("here", first), ("there", second)):
        if unshared := [str(node) for node in graph.nodes if node not in shared]:
            yield f"    {where} alone: {', '.join(unshared)}"
    yield f"  edges: {len(shared_edges)} in both, of {len(first_edges)} here and {len(second_edges)} there"
    for where, edges in (("here", first_edges), ("there", second_edges)):
        share = _share(edges, shared_edges)
        yield f"    {share:.2f} of all effects {where} is on shared edges{_describe_strongest(edges, shared_edges)}"
    if len(shared_edges) > 2:
        pairs = np.array([(first_edges[ends], second_edges[ends]) for ends in shared_edges])  # (edge, graph)
        difference = float(np.median(np.abs(pairs[:, 0] - pairs[:, 1])))
        correlation = np.corrcoef(pairs.T)[0, 1]
        yield f"    their effects, here against there: correlation {correlation:.3f}, half within {difference:.2f}"


def _edges(graph: Graph) -> dict[Ends, float]:
    return {(edge.sender, edge.receiver, edge.component): edge.effect for edge in graph.edges}


def _prompts(first: Graph, second: Graph) -> str:
    """How many prompts the two graphs share; ids of different designs are different prompts."""
    try:
        (design, ids), (second_design, second_ids) = (_design_and_ids(graph.settings) for graph in (first, second))
    except KeyError:
        return "found on prompts that its file does not name"
    same = set(ids) & set(second_ids) if design == second_design else set()
    return f"found on {len(second_ids)} prompts, {len(same)} of them among the {len(ids)} of this run"


def _design_and_ids(settings: Mapping[str, Any]) -> tuple[str, range]:
    return settings["design"], range(settings["skip_prompts"], settings["skip_prompts"] + settings["prompts"])


def _share(edges: Mapping[Ends, float], shared: list[Ends]) -> float:
    total = sum(map(abs, edges.values()))
    return sum(abs(edges[ends]) for ends in shared) / total if total else 1.0


def _describe_strongest(edges: Mapping[Ends, float], shared: list[Ends]) -> str:
    """The strongest edges that only one graph has."""
    unshared = sorted(edges.keys() - set(shared), key=lambda ends: (-abs(edges[ends]), str(ends)))[:SHOWN]
    texts = (
        f"{sender} to {receiver or 'the logits'} {part} {edges[sender, receiver, part]:+.2f}"
        for sender, receiver, part in unshared
    )
    return f"; the rest begins with {'; '.join(texts)}" if unshared else ""
