"""The search: from the logits backwards, step by step, until nobody is found who sends to those found last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.evidence.blocks import Tick, in_blocks
from rebinding.evidence.store import Shelf
from rebinding.experiments.anywhere.effects import LEAST, direct, through
from rebinding.experiments.anywhere.kinds import STEPS
from rebinding.experiments.anywhere.pairs import Pairs
from rebinding.experiments.anywhere.request import Settings
from rebinding.experiments.anywhere.scene import Scene, scene
from rebinding.experiments.anywhere.summary import Found, Functions, family, kept
from rebinding.paper.graph import Edge, Graph, Node
from rebinding.surgery import TorchSurgeon

CODE = through.__module__
"""What the numbers of a step depend on; how senders are chosen from them does not change them."""


class OutOfTime(Exception):
    """The minutes are up; what is done is in the store."""


@dataclass(eq=False)
class Search:
    """A search on some pairs. `deadline` is a time of `time.monotonic`; blocks that are done are kept on the shelf."""

    surgeon: TorchSurgeon
    pairs: Pairs
    settings: Settings
    shelf: Shelf | None = None
    deadline: float = float("inf")
    say: Callable[[str], object] = lambda line: None
    scenes: dict[int, Scene] = field(default_factory=dict)

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
        about |= {"prompts": len(self.pairs.ids), "whole": self.whole(), "finished": finished}
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
        least = self.settings.share * abs(self.whole()) * (LEAST if asked else 1.0)
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
        ids = range(len(self.pairs.ids))
        if allowed is not None:
            return self._blocks(ids, receivers, allowed, replace(self.settings, exhaustive=True, listens=0.0))
        if self.settings.exhaustive or not receivers:
            return self._blocks(ids, receivers, None, self.settings)
        first = self._blocks(ids[: self.settings.block], receivers, None, self.settings)
        others, felt = ids[self.settings.block :], self._felt(first.rows)
        if not others or not felt:
            return first
        rest = self._blocks(others, receivers, felt, self.settings)
        return STEPS.evidence(pd.concat([first.rows, rest.rows], ignore_index=True), first.settings)

    def _felt(self, rows: pd.DataFrame) -> list[Node]:
        """The senders whose effects on the first block, signs apart, come to `LEAST` of what is kept: a head at all
        places of a family, as it may be the same head's work from prompt to prompt."""
        effect = (rows["before"] - rows["after"]).abs()
        cells = effect.groupby([rows["layer"], rows["head"], rows["place"].map(family)]).sum()
        least = LEAST * self.settings.share * abs(self.whole()) * min(self.settings.block, len(self.pairs.ids))
        alike: dict[str, list[str]] = {}
        for place in self.pairs.places:
            alike.setdefault(family(place), []).append(place)
        found = cells[cells >= least].index
        return [Node(int(layer), int(head), place) for layer, head, name in found for place in alike[name]]

    def _blocks(
        self, numbers: range, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        """Some prompts, block by block."""
        described = {
            "receivers": [list(node) for node in receivers],
            "allowed": None if allowed is None else [list(node) for node in allowed],
            **asdict(settings),
        }

        def compute(prompts: Sequence[int], tick: Tick) -> Evidence:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            where = self.scene(slice(prompts[0], prompts[-1] + 1))
            rows = through(where, receivers, settings, allowed) if receivers else direct(where, allowed)
            tick(len(prompts))
            return STEPS.evidence(rows, described)

        return in_blocks(
            numbers,
            compute,
            experiment=STEPS.name,
            size=self.settings.block,
            cost=lambda _: 1,
            content=lambda number: [self.pairs.clean[number].ids, self.pairs.noise[number].ids],
            shelf=self.shelf and self.shelf.of(CODE, type(self.surgeon).__module__, settings=described),
        )

    def scene(self, where: slice) -> Scene:
        """A block of pairs, recorded once."""
        if where.start not in self.scenes:
            self.scenes[where.start] = scene(self.surgeon, self.pairs.of(where))
        return self.scenes[where.start]

    def whole(self) -> float:
        """The score that is lost if everything is as in the noise prompt."""
        starts = range(0, len(self.pairs.ids), self.settings.block)
        blocks = [self.scene(slice(start, min(start + self.settings.block, len(self.pairs.ids)))) for start in starts]
        return sum(block.total * block.n for block in blocks) / len(self.pairs.ids)

    @property
    def functions(self) -> Functions:
        """What each place is for, prompt by prompt."""
        return {
            number: {place: name for place, name in zip(self.pairs.places, names, strict=True) if name}
            for number, names in zip(self.pairs.ids, self.pairs.functions, strict=True)
        }
