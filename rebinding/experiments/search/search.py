"""The search: from the logits backwards, step by step, until nobody is found who sends to those found last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.search.effects import LEAST, direct, through
from rebinding.experiments.search.pairs import Pairs
from rebinding.experiments.search.request import STEPS, Settings
from rebinding.experiments.search.scene import Scene, scene
from rebinding.experiments.search.summary import Found, Functions, family, kept
from rebinding.paper.graph import Edge, Graph, Node
from rebinding.surgery import TorchSurgeon


class OutOfTime(Exception):
    """The minutes are up; what is done is in the store."""


class Steps(Protocol):
    """Measures blocks of pairs, by number: here (`MeasuredSteps`), or by asking an evidence source."""

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        """What senders of a block do to the score through some receivers; through the logits if there are none."""
        ...

    def losses(self, block: int) -> Evidence:
        """The score of each prompt, and that of its noise prompt."""
        ...


@dataclass(eq=False)
class MeasuredSteps:
    """Measures steps on pairs that are recorded once, block by block."""

    surgeon: TorchSurgeon
    pairs: Pairs
    size: int
    _scenes: dict[int, Scene] = field(default_factory=dict)

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        return step_rows(self._scene(block), receivers, allowed, settings)

    def losses(self, block: int) -> Evidence:
        return self._scene(block).losses()

    def _scene(self, block: int) -> Scene:
        if block not in self._scenes:
            part = slice(block * self.size, min((block + 1) * self.size, len(self.pairs.ids)))
            self._scenes[block] = scene(self.surgeon, self.pairs.of(part))
        return self._scenes[block]


def step_rows(where: Scene, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings) -> Evidence:
    """One step on one block."""
    rows = through(where, receivers, settings, allowed) if receivers else direct(where, allowed)
    return STEPS.evidence(rows, {})


@dataclass(eq=False)
class Search:
    """A search on some pairs. `deadline` is a time of `time.monotonic`, looked at before every block."""

    pairs: Pairs
    settings: Settings
    steps: Steps
    deadline: float = float("inf")
    say: Callable[[str], object] = lambda line: None

    def nodes(self) -> list[Node]:
        """The nodes alone, from the answer backwards."""
        return self._nodes([], [])[0]

    def graph(self, described: dict[str, Any] | None = None) -> Graph:
        """The nodes, found step by step, and then the edges between them, one receiver at a time."""
        nodes: list[Node] = []
        edges: list[Edge] = []
        finished = True
        try:
            nodes, edges = self._nodes(nodes, edges)
            for node in nodes:
                edges += self._edges(node, nodes)
        except OutOfTime:
            finished = False
        about = {**asdict(self.settings), **(described or {})}
        about |= {"prompts": len(self.pairs.ids), "whole": self.whole, "finished": finished}
        return Graph(tuple(nodes), tuple(edges), about)

    def _nodes(self, nodes: list[Node], edges: list[Edge]) -> tuple[list[Node], list[Edge]]:
        front: list[Node] = []
        while True:
            found = self._kept(self.step(front), known=nodes)
            if not front:
                edges += [Edge(one.node, None, one.component, one.effect, one.low, one.high) for one in found]
            front = sorted({one.node for one in found} - set(nodes), reverse=True)
            nodes += front
            self.say(f"{len(front)} new: {', '.join(map(str, front)) or 'nobody; the search ends'}")
            if not any(node.layer for node in front):
                return nodes, edges

    def _kept(self, evidence: Evidence, asked: Sequence[Node] = (), known: Sequence[Node] = ()) -> list[Found]:
        least = self.settings.share * abs(self.whole) * (LEAST if asked else 1.0)
        names, alpha = asked or self.functions, self.settings.alpha
        return kept(evidence.rows, self.pairs.strata, names, known, least=least, alpha=alpha)

    def _edges(self, receiver: Node, nodes: Sequence[Node]) -> list[Edge]:
        """Who of the nodes tells this one what. An edge needs `LEAST` of what a node needs: a node may reach the score
        through many receivers."""
        below = [node for node in nodes if node.layer < receiver.layer]
        if not below:
            return []
        found = self._kept(self.step([receiver], below), below)
        return [Edge(one.node, receiver, one.component, one.effect, one.low, one.high) for one in found]

    def step(self, receivers: Sequence[Node], allowed: Sequence[Node] | None = None) -> Evidence:
        """One step: senders to some receivers, to the logits if there are none.

        A first block of prompts looks at every sender; the others leave out those without which it lost next to
        nothing (`_felt`). With `allowed` or exhaustively, all prompts look at the same.
        """
        if allowed is not None:
            settings = replace(self.settings, exhaustive=True, listens=0.0)
            return self._blocks(self._numbers, receivers, allowed, settings)
        if self.settings.exhaustive or not receivers:
            return self._blocks(self._numbers, receivers, None, self.settings)
        first = self._blocks(self._numbers[:1], receivers, None, self.settings)
        others, felt = self._numbers[1:], self._felt(first.rows)
        if not others or not felt:
            return first
        return _concat([first, self._blocks(others, receivers, felt, self.settings)])

    def _felt(self, rows: pd.DataFrame) -> list[Node]:
        """The senders whose effects on the first block, signs apart, come to `LEAST` of what is kept: a head at all
        places of a family, as it may be the same head's work from prompt to prompt."""
        effect = (rows["before"] - rows["after"]).abs()
        cells = effect.groupby([rows["layer"], rows["head"], rows["place"].map(family)]).sum()
        least = LEAST * self.settings.share * abs(self.whole) * min(self.settings.block, len(self.pairs.ids))
        alike: dict[str, list[str]] = {}
        for place in self.pairs.places:
            alike.setdefault(family(place), []).append(place)
        found = cells[cells >= least].index
        return [Node(int(layer), int(head), place) for layer, head, name in found for place in alike[name]]

    @property
    def _numbers(self) -> range:
        """The blocks."""
        return range(-(-len(self.pairs.ids) // self.settings.block))

    def _blocks(
        self, numbers: range, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        """Some blocks, one after the other."""
        found = []
        for number in numbers:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            found.append(self.steps.step(number, receivers, allowed, settings))
        return _concat(found)

    @cached_property
    def whole(self) -> float:
        """The score that is lost if everything is as in the noise prompt."""
        rows = pd.concat([self.steps.losses(number).rows for number in self._numbers])
        return float((rows["clean"] - rows["noise"]).mean())

    @property
    def functions(self) -> Functions:
        """What each place is for, prompt by prompt."""
        return {
            number: {place: name for place, name in zip(self.pairs.places, names, strict=True) if name}
            for number, names in zip(self.pairs.ids, self.pairs.functions, strict=True)
        }


def _concat(blocks: Sequence[Evidence]) -> Evidence:
    """The rows of several blocks; a block without rows adds none."""
    filled = [block.rows for block in blocks if len(block.rows)] or [blocks[0].rows]
    return STEPS.evidence(pd.concat(filled, ignore_index=True), {})
