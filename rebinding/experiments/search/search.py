"""The search: from the logits backwards, step by step, until a step finds no new senders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.search.effects import EDGE_SHARE, direct_effect, effect_via_receivers
from rebinding.experiments.search.pairs import Pairs
from rebinding.experiments.search.recorded_pairs import RecordedPairs, record_pairs
from rebinding.experiments.search.request import STEPS, Settings
from rebinding.experiments.search.summary import Functions, NodeEffect, family, select_senders
from rebinding.paper.graph import Edge, Graph, Node
from rebinding.surgery import TorchSurgeon


class OutOfTime(Exception):
    """The time limit is reached; finished blocks are in the store."""


class Steps(Protocol):
    """Measures numbered blocks of pairs: directly (`MeasuredSteps`), or by requests to an evidence source."""

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        """The effect of senders on the score via some receivers, in one block; the direct effect if there are none."""
        ...

    def losses(self, block: int) -> Evidence:
        """The score of each prompt, and that of its noise prompt."""
        ...


@dataclass(eq=False)
class MeasuredSteps:
    """Measures steps block by block; records each block once."""

    surgeon: TorchSurgeon
    pairs: Pairs
    size: int
    _recorded_blocks: dict[int, RecordedPairs] = field(default_factory=dict)

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        return step_rows(self._record_block(block), receivers, allowed, settings)

    def losses(self, block: int) -> Evidence:
        return self._record_block(block).losses()

    def _record_block(self, block: int) -> RecordedPairs:
        if block not in self._recorded_blocks:
            part = slice(block * self.size, min((block + 1) * self.size, len(self.pairs.ids)))
            self._recorded_blocks[block] = record_pairs(self.surgeon, self.pairs.of(part))
        return self._recorded_blocks[block]


def step_rows(
    recorded_pairs: RecordedPairs, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
) -> Evidence:
    """One step on one block."""
    rows = (
        effect_via_receivers(recorded_pairs, receivers, settings, allowed)
        if receivers
        else direct_effect(recorded_pairs, allowed)
    )
    return STEPS.evidence(rows, {})


@dataclass(eq=False)
class Search:
    """A search on some pairs. `deadline` is a time of `time.monotonic`, checked before every block."""

    pairs: Pairs
    settings: Settings
    steps: Steps
    deadline: float = float("inf")
    report: Callable[[str], object] = lambda line: None

    def nodes(self) -> list[Node]:
        """The nodes alone, from the answer backwards."""
        return self._nodes([], [])[0]

    def graph(self, extra_settings: dict[str, Any] | None = None) -> Graph:
        """Find the nodes step by step, and then the edges between them, one receiver at a time."""
        nodes: list[Node] = []
        edges: list[Edge] = []
        is_finished = True
        try:
            nodes, edges = self._nodes(nodes, edges)
            for node in nodes:
                edges += self._edges(node, nodes)
        except OutOfTime:
            is_finished = False
        about = {**asdict(self.settings), **(extra_settings or {})}
        about |= {"prompts": len(self.pairs.ids), "whole": self.total_loss, "finished": is_finished}
        return Graph(tuple(nodes), tuple(edges), about)

    def _nodes(self, nodes: list[Node], edges: list[Edge]) -> tuple[list[Node], list[Edge]]:
        front: list[Node] = []
        while True:
            effects = self._select(self.step(front), named=nodes)
            if not front:
                edges += [Edge(item.node, None, item.component, item.effect, item.low, item.high) for item in effects]
            front = sorted({effect.node for effect in effects} - set(nodes), reverse=True)
            nodes += front
            self.report(f"{len(front)} new: {', '.join(map(str, front)) or 'none; the search ends'}")
            if not any(node.layer for node in front):
                return nodes, edges

    def _select(self, evidence: Evidence, nodes: Sequence[Node] = (), named: Sequence[Node] = ()) -> list[NodeEffect]:
        """The senders with a significant effect of the required size; `nodes` restricts them to edges of these
        nodes."""
        min_effect = self.settings.share * abs(self.total_loss) * (EDGE_SHARE if nodes else 1.0)
        names, alpha = nodes or self.functions, self.settings.alpha
        return select_senders(evidence.rows, self.pairs.strata, names, named, min_effect=min_effect, alpha=alpha)

    def _edges(self, receiver: Node, nodes: Sequence[Node]) -> list[Edge]:
        """The edges from other nodes to a receiver. The threshold is `EDGE_SHARE` of that for nodes, because a node may
        reach the score via many receivers."""
        below = [node for node in nodes if node.layer < receiver.layer]
        if not below:
            return []
        effects = self._select(self.step([receiver], below), below)
        return [Edge(item.node, receiver, item.component, item.effect, item.low, item.high) for item in effects]

    def step(self, receivers: Sequence[Node], allowed: Sequence[Node] | None = None) -> Evidence:
        """One step: the effect of senders via some receivers, or the direct effect if there are none.

        The first block of prompts runs every sender; the others skip senders with almost no effect on the first
        (`_senders_with_effect`). With `allowed`, or if exhaustive, all blocks run the same senders.
        """
        if allowed is not None:
            settings = replace(self.settings, exhaustive=True, min_attention=0.0)
            return self._blocks(self._numbers, receivers, allowed, settings)
        if self.settings.exhaustive or not receivers:
            return self._blocks(self._numbers, receivers, None, self.settings)
        first = self._blocks(self._numbers[:1], receivers, None, self.settings)
        rest, senders = self._numbers[1:], self._senders_with_effect(first.rows)
        if not rest or not senders:
            return first
        return _concat([first, self._blocks(rest, receivers, senders, self.settings)])

    def _senders_with_effect(self, rows: pd.DataFrame) -> list[Node]:
        """The senders whose absolute effects on the first block sum to `EDGE_SHARE` of the threshold for nodes: a head
        at all places of a family, because its token may differ from prompt to prompt."""
        effect = (rows["before"] - rows["after"]).abs()
        cells = effect.groupby([rows["layer"], rows["head"], rows["place"].map(family)]).sum()
        min_effect = (
            EDGE_SHARE * self.settings.share * abs(self.total_loss) * min(self.settings.block, len(self.pairs.ids))
        )
        by_family: dict[str, list[str]] = {}
        for place in self.pairs.places:
            by_family.setdefault(family(place), []).append(place)
        selected = cells[cells >= min_effect].index
        return [Node(int(layer), int(head), place) for layer, head, name in selected for place in by_family[name]]

    @property
    def _numbers(self) -> range:
        """The numbers of the blocks."""
        return range(-(-len(self.pairs.ids) // self.settings.block))

    def _blocks(
        self, numbers: range, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        """Measure some blocks in order; stop at the deadline."""
        results = []
        for number in numbers:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            results.append(self.steps.step(number, receivers, allowed, settings))
        return _concat(results)

    @cached_property
    def total_loss(self) -> float:
        """The mean loss of score from clean to noise prompts."""
        rows = pd.concat([self.steps.losses(number).rows for number in self._numbers])
        return float((rows["clean"] - rows["noise"]).mean())

    @property
    def functions(self) -> Functions:
        """The function of each place, prompt by prompt."""
        return {
            number: {place: name for place, name in zip(self.pairs.places, names, strict=True) if name}
            for number, names in zip(self.pairs.ids, self.pairs.functions, strict=True)
        }


def _concat(blocks: Sequence[Evidence]) -> Evidence:
    """The rows of several blocks; a block without rows adds none."""
    filled = [block.rows for block in blocks if len(block.rows)] or [blocks[0].rows]
    return STEPS.evidence(pd.concat(filled, ignore_index=True), {})
