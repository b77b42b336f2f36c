"""Position-free discovery: from the logits backwards, step by step, until a step finds no new senders.

A step is the effect of every sender on the score via the current receivers.

This is path patching, textbook form. A *sender* is a head at a token. In the sender run its z is that of the noise
prompt, every other head's z is frozen, MLPs and norms are recomputed; the resulting query, key or value projections of
a receiver at that token are the sender's output. The receiver, a head at a token of its own, computes its z from that
output (`rebinding.surgery.receivers`) with all else as recorded: its query if the two tokens are the same, the key or
the value at the sender's token in any case. The receiver run adds the change of z in the clean prompt and freezes
nothing: a receiver that a sender does not reach still reads from the receivers that it does reach.

**Skipped rows.** Exactly: senders not below a receiver; tokens before the two prompts differ; senders whose z is the
same in both; tokens after the receiver's or outside its window. By an estimate: rows that change their receivers by
less than `SMALL` of the residual stream, and whose effect by the slope of the score (`rebinding.surgery.slopes`) is
less than `FEW` of the threshold for selection, divided by `SLACK`. So small a change is nearly linear; if a head is
saturated and its slope 0, a small change does nothing, and a large one is run whatever the slope. With `exhaustive`
every row is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.search.pairs import (
    COMPONENTS,
    Pairs,
    ReceiverChange,
    RecordedPairs,
    Senders,
    receiver_change,
    record_pairs,
    recorded_receiver,
    sender_batches,
    sender_output,
    sender_tokens,
)
from rebinding.experiments.search.request import STEPS, Settings
from rebinding.experiments.search.summary import Functions, NodeEffect, family, select_senders
from rebinding.paper.graph import Edge, Graph, Node
from rebinding.surgery import Edit, TorchSurgeon
from rebinding.surgery.receivers import Component

EDGE_SHARE = 0.1
"""Share of the threshold for nodes: a smaller effect counts as 0 for an edge, and for a sender in the first block."""
FEW = 0.25
"""Share of the threshold for nodes: a row with a smaller effect, in its one prompt, may be skipped."""
SLACK = 2.0
"""The factor by which the estimate for a small change may be wrong."""
SMALL = 0.02
"""Share of the residual stream: a larger change is run and not estimated."""
AT_ONCE = 512
"""Rows of a batch of receiver runs."""
Allowed: TypeAlias = Sequence[Node] | None
"""Senders to run; all if None."""


def direct_effect(recorded_pairs: RecordedPairs, allowed: Allowed = None) -> pd.DataFrame:
    """The first step: the effect of senders at the readout on the logits."""
    tokens = torch.zeros(recorded_pairs.n, recorded_pairs.pairs.length, dtype=torch.bool)
    tokens[torch.arange(recorded_pairs.n), recorded_pairs.readout] = True
    parts = []
    for layer in range(recorded_pairs.surgeon.anatomy.n_layers):
        senders = _allowed(recorded_pairs, recorded_pairs.senders(layer, tokens), allowed)
        if senders.n:
            reads = [recorded_pairs.read(senders.prompt)]
            edits = [senders.noise_edit(recorded_pairs.noise_z)]
            (after,) = recorded_pairs.surgeon.run(
                recorded_pairs.recording, edits, reads, source=senders.prompt, attention="frozen", allow_noop=True
            )
            parts.append(_rows(recorded_pairs, "direct", senders, after[:, 0], torch.ones(senders.n)))
    return _join_rows(parts)


def effect_via_receivers(
    recorded_pairs: RecordedPairs, nodes: Sequence[Node], settings: Settings, allowed: Allowed = None
) -> pd.DataFrame:
    """A later step: the effect of senders below the receivers, at every token that some receiver can attend to."""
    receivers = [recorded_receiver(recorded_pairs, node) for node in nodes]
    changes: dict[Component, list[tuple[Senders, list[ReceiverChange]]]] = {component: [] for component in COMPONENTS}
    for layer in range(max(node.layer for node in nodes)):
        above = [receiver for receiver in receivers if receiver.node.layer > layer]
        senders = _allowed(
            recorded_pairs, recorded_pairs.senders(layer, sender_tokens(recorded_pairs, above, settings)), allowed
        )
        for batch in sender_batches(recorded_pairs, senders, above):
            output = sender_output(recorded_pairs, batch, above)
            for component in COMPONENTS:
                of_batch = [receiver_change(recorded_pairs, receiver, component, batch, output) for receiver in above]
                changes[component].append((batch, of_batch))
    floor = 0.0 if settings.exhaustive else FEW / SLACK * settings.share * abs(recorded_pairs.total)
    return _join_rows(
        [_receiver_runs(recorded_pairs, component, parts, floor) for component, parts in changes.items() if parts]
    )


def _allowed(recorded_pairs: RecordedPairs, senders: Senders, allowed: Allowed) -> Senders:
    """The senders that are among the allowed nodes."""
    if allowed is None:
        return senders
    table = torch.zeros(
        recorded_pairs.surgeon.anatomy.n_heads, recorded_pairs.n, recorded_pairs.pairs.length, dtype=torch.bool
    )
    for node in allowed:
        if node.layer == senders.layer:
            at = recorded_pairs.pairs.at(node.token)
            table[node.head, torch.nonzero(at >= 0).reshape(-1), at[at >= 0]] = True
    return senders.take(torch.nonzero(table[senders.head, senders.prompt, senders.token]).reshape(-1))


def _receiver_runs(
    recorded_pairs: RecordedPairs,
    component: Component,
    parts: Sequence[tuple[Senders, list[ReceiverChange]]],
    floor: float,
) -> pd.DataFrame:
    """The receiver runs of one component, for rows with a large change of a receiver or an estimate of at least
    `floor`."""
    sizes, estimates = [], []
    for senders, receiver_changes in parts:
        largest, estimate = torch.zeros(senders.n), torch.zeros(senders.n)
        for change in receiver_changes:
            largest[change.rows] = torch.maximum(largest[change.rows], change.relative_change.cpu())
            estimate[change.rows] += change.estimate.float().cpu()
        sizes.append(largest)
        estimates.append(estimate)
    number = torch.cat([torch.full((largest.numel(),), place) for place, largest in enumerate(sizes)])
    row = torch.cat([torch.arange(largest.numel()) for largest in sizes])
    change_size, estimate = torch.cat(sizes), torch.cat(estimates)
    chosen = torch.nonzero((change_size > 0) & ((change_size >= SMALL) | (estimate.abs() >= floor))).reshape(-1)
    frames = []
    for chunk in chosen.split(AT_ONCE) if chosen.numel() else ():
        batch = [(place, chunk[number[chunk] == place]) for place in number[chunk].unique().tolist()]
        after = _run(recorded_pairs, [(*parts[place], row[rows]) for place, rows in batch])
        for (place, rows), value in zip(batch, after.split([rows.numel() for _, rows in batch]), strict=True):
            frames.append(_rows(recorded_pairs, component, parts[place][0].take(row[rows]), value, change_size[rows]))
    return _join_rows(frames)


def _run(recorded_pairs: RecordedPairs, parts: Sequence[tuple[Senders, Sequence[ReceiverChange], Tensor]]) -> Tensor:
    """The score (row,) of clean prompts in which the z of every receiver has the change due to the senders: the named
    rows of each part, one part after the other."""
    source = torch.cat([senders.prompt[rows] for senders, _, rows in parts])  # (row,)
    changes: dict[Node, list[tuple[Tensor, Tensor, Tensor]]] = {}
    begin = 0
    for senders, receiver_changes, rows in parts:
        place = torch.full((senders.n,), -1)
        place[rows] = torch.arange(begin, begin + rows.numel())
        begin += rows.numel()
        for change in receiver_changes:
            chosen = torch.nonzero((place[change.rows] >= 0) & (change.relative_change.cpu() > 0)).reshape(-1)
            at = change.receiver.at[senders.prompt[change.rows[chosen]]]
            changes.setdefault(change.receiver.node, []).append((place[change.rows[chosen]], at, change.change[chosen]))
    edits = []
    for node, columns in changes.items():
        edited, at, value = (torch.cat(column) for column in zip(*columns, strict=True))
        if edited.numel():
            value = value[:, None, None]  # (row, 1, 1, head_dim)
            edits.append(
                Edit("z", node.layer, value, positions=at[:, None], heads=(node.head,), rows=edited, mode="add")
            )
    (after,) = recorded_pairs.surgeon.run(
        recorded_pairs.recording, edits, [recorded_pairs.read(source)], source=source, allow_noop=True
    )
    return after[:, 0]


def _rows(
    recorded_pairs: RecordedPairs, component: str, senders: Senders, after: Tensor, relative_change: Tensor
) -> pd.DataFrame:
    pairs, prompts, tokens = recorded_pairs.pairs, senders.prompt.tolist(), senders.token.tolist()
    return pd.DataFrame(
        {
            "prompt": [pairs.ids[prompt] for prompt in prompts],
            "component": component,
            "layer": senders.layer,
            "head": senders.head.numpy(),
            "token": tokens,
            "place": [pairs.places[token] for token in tokens],
            "function": [pairs.functions[prompt][token] or "" for prompt, token in zip(prompts, tokens, strict=True)],
            "before": recorded_pairs.before[senders.prompt].cpu().numpy(),
            "after": after.cpu().numpy(),
            "relative_change": relative_change.cpu().numpy(),
        }
    )


def _join_rows(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(STEPS.columns))


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
        return _join_blocks([first, self._blocks(rest, receivers, senders, self.settings)])

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
        return _join_blocks(results)

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


def _join_blocks(blocks: Sequence[Evidence]) -> Evidence:
    """The rows of several blocks; a block without rows adds none."""
    filled = [block.rows for block in blocks if len(block.rows)] or [blocks[0].rows]
    return STEPS.evidence(pd.concat(filled, ignore_index=True), {})
