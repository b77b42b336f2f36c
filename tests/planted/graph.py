"""The true graph of a plant: which head at which token tells which other one what, read off its lines.

A line writes spaces at the tokens where it stands, and reads spaces: by q at its own token (the query sides of
`where`), by k (the key sides, `prefer`) and by v (what it carries over) at the tokens where it looks. A line that
writes a space where a later line reads it is a link; one that writes objects at the readout acts on the logits. The
graph is what leads there. Lines of grammar are no part of it: they say the same in every prompt. Nor is a line that is
as good as deaf to what is asked for: what it does for the answer it does for other objects too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rebinding.experiments.search.graph import Node
from rebinding.planted.language import Line, expression
from rebinding.planted.plant import Plant
from rebinding.task.prompts import TokenizedPrompt
from rebinding.task.text import names_by_place

Link: TypeAlias = tuple[Node, Node | None, str]
"""Sender, receiver (None: the logits) and component."""
ROLES = {
    "context": "context_box",
    "thing": "context_object",
    "first": "swap_first",
    "second": "swap_second",
    "question": "question_box",
    "readout": "readout",
    "period": "swap_period",
}
"""Roles of the kinds of tokens that lines name; a `dot` is any full stop."""
DEAF = 0.05
"""Nats. A head that asks for something with less does not ask."""


@dataclass(frozen=True)
class Wired:
    """Nodes and links, as planted."""

    nodes: frozenset[Node]
    links: frozenset[Link]


def wired(plant: Plant, prompt: TokenizedPrompt) -> Wired:
    """The true graph of a plant on prompts that are written like this one."""
    places = {name: at for at, name in enumerate(names_by_place(prompt.roles, prompt.pieces))}
    lines = {line.name: line for line in plant.wiring.lines if not _deaf(line)}
    front = [
        (line, place)
        for line in lines.values()
        for place in _places(line.at, places)
        if place == "readout" and any(_meets(space, "object") for space, _ in line.writes)
    ]
    nodes = {(line.name, place) for line, place in front}
    links: set[Link] = {(_node(plant, line, place), None, "direct") for line, place in front}
    while front:
        reader, at = front.pop()
        for component, space, place in _reads(reader, at, places):
            for line in lines.values():
                writes = line.layer < reader.layer and any(
                    _meets(space_written, space) for space_written, _ in line.writes
                )
                if writes and place in _places(line.at, places):
                    links.add((_node(plant, line, place), _node(plant, reader, at), component))
                    if (line.name, place) not in nodes:
                        nodes.add((line.name, place))
                        front.append((line, place))
    return Wired(frozenset(_node(plant, lines[name], place) for name, place in nodes), frozenset(links))


def _node(plant: Plant, line: Line, place: str) -> Node:
    return Node(*plant.heads[line.name], place)


def _deaf(line: Line) -> bool:
    gains = [abs(gain) for query, _ in line.matches for gain, _ in query]
    return bool(gains) and line.unit is not None and max(gains) * line.unit < DEAF


def _reads(line: Line, at: str, places: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """Component, space, and the place where it is read, for a line that stands at a place."""
    for query, _ in line.matches:
        yield from (("q", name, at) for _, name in query)
    keys = [name for _, key in line.matches for _, name in key]
    keys += [name for _, name in expression(line.prefer)] if line.prefer else []
    values = [name for _, source in line.writes for _, name in source]
    for place in _places(line.look, places):
        distance = dict(line.distances).get(_kind(line.at, at, places))
        if places[place] <= places[at] and distance in (None, places[at] - places[place]):
            yield from (("k", name, place) for name in keys)
            yield from (("v", name, place) for name in values)


def _kind(text: str, at: str, places: Mapping[str, int]) -> str:
    return next(name for _, name in expression(text) if at in _places(name, places))


def _places(text: str, places: Mapping[str, int]) -> list[str]:
    """The places of the kinds of tokens in an expression."""
    return [place for _, kind in expression(text) for place in places if _is(place, kind)]


def _is(place: str, kind: str) -> bool:
    if kind == "dot":
        return place == ROLES["period"] or place.startswith(".@")
    return place.split("[")[0] == ROLES.get(kind)


def _meets(space_written: str, read: str) -> bool:
    """Whether a written space and a read one share a direction, as `slot[1]` and `slot` do."""
    return space_written == read or space_written.startswith(f"{read}[") or read.startswith(f"{space_written}[")
