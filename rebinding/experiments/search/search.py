"""Position-free discovery: from the logits backwards, step by step, until a step finds no new senders.

A step is the effect of every sender on the score via the current receivers.

This is path patching (`rebinding.experiments.path_patching`), textbook form, with senders and receivers at any tokens.
The input of a receiver is its query, key or value at the sender's token: the query if that is its own token, the key or
the value in any case. The receiver computes its z from this input (`rebinding.surgery.receivers`) with all else as
recorded. The receiver run adds the change of z in the clean prompt and freezes nothing: a receiver that a sender does
not reach still reads from the receivers that it does reach.

**Skipped rows.** Exactly: senders not below a receiver; tokens before the two prompts differ; senders whose z is the
same in both; tokens after the receiver's or outside its window.

Not exactly: tokens with less attention than `min_attention`, and, with `screen="first-order"` (the default), rows with
a small estimated effect. The first-order estimate is the change of the receivers' z times the slope of the score with z
(`rebinding.surgery.slopes`). A row is skipped if it changes each receiver by less than `LARGE` of the residual stream
and the estimate is below `NEGLIGIBLE / ESTIMATE_ERROR` of the threshold for selection. Where later heads are saturated
the slope is next to 0, and a change that is too small to be run regardless may still tip them; the decision
(docs/decisions/position-free-discovery.md) counts such rows. With `"edge-attribution"` and its integrated form the
effect of the whole edge is estimated, before the sender run, and rows below that bound are skipped in both runs. With
`screen="none"` all are run.

**MLPs** may be nodes too. Then all other MLPs are frozen in the sender run, so that an edge leads through none, and an
MLP receives at the sender's token, from heads of its layer as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Protocol, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.path_patching import ReceiverSite, Senders, inputs_above, join_senders, receiver_inputs
from rebinding.experiments.search.graph import Edge, Graph, Node
from rebinding.experiments.search.pairs import (
    ReceiverChange,
    RecordedPairs,
    SearchPairs,
    estimate_effects,
    join_changes,
    receiver_change,
    record_pairs,
    recorded_receiver,
    sender_tokens,
)
from rebinding.experiments.search.request import STEPS, SearchSettings
from rebinding.experiments.search.summary import Functions, NodeEffect, family, select_senders
from rebinding.paper.circuit import MLP, depth, forward_order
from rebinding.surgery import TorchSurgeon
from rebinding.surgery.slopes import READINGS, Estimates, Reading

READ: tuple[ReceiverSite, ...] = ("q", "k", "v", "mlp_out")
EDGE_SHARE = 0.1
"""Share of the threshold for nodes: a smaller effect counts as 0 for an edge, and for a sender in the first block."""
NEGLIGIBLE = 0.25
"""Share of the threshold for nodes: a row with a smaller effect, in its one prompt, may be screened out."""
ESTIMATE_ERROR = 2.0
"""The factor by which the first-order estimate for a small change may be wrong."""
LARGE = 0.02
"""Share of the residual stream: a row with a change at least as large is run, whatever the estimate."""
AT_ONCE = 512
"""Rows of a batch of receiver runs."""
Allowed: TypeAlias = Sequence[Node] | None
"""Senders to run; all if None."""


def direct_effect(recorded_pairs: RecordedPairs, allowed: Allowed = None) -> pd.DataFrame:
    """The first step: the effect of senders at the readout on the logits."""
    where = torch.arange(recorded_pairs.pairs.length) == recorded_pairs.readout[:, None, None]  # (prompt, 1, token)
    senders = join_senders(
        [
            recorded_pairs.senders(layer, where & is_allowed, mlp=is_mlp)
            for layer, is_mlp, is_allowed in _allowed(recorded_pairs, allowed)
        ]
    )
    if not senders.n:
        return _join_rows([])
    after = recorded_pairs.send_to_logits(senders, frozen=recorded_pairs.frozen)
    return _rows(recorded_pairs, "direct", senders, after, torch.ones(senders.n))


def effect_via_receivers(
    recorded_pairs: RecordedPairs, nodes: Sequence[Node], settings: SearchSettings, allowed: Allowed = None
) -> pd.DataFrame:
    """A later step: the effect of senders below the receivers, at every token that some receiver can attend to."""
    receivers = [recorded_receiver(recorded_pairs, node) for node in nodes]
    inputs = receiver_inputs(recorded_pairs.anatomy, {node[:2] for node in nodes}, READ)
    is_attributed = settings.screen not in ("first-order", "none")
    estimates = recorded_pairs.attribute(receivers, settings.screen) if is_attributed else None
    batches: list[Senders] = []
    changes: dict[ReceiverSite, dict[Node, list[ReceiverChange]]] = {site: {} for site in READ}
    first = 0
    for layer, is_mlp, is_allowed in _allowed(recorded_pairs, allowed):
        lowest = depth((layer, MLP if is_mlp else 0))
        above = [receiver for receiver in receivers if depth(receiver.node) > lowest]
        if not above:
            continue
        where = sender_tokens(recorded_pairs, above, settings)[:, None] & is_allowed
        if estimates is not None:
            where = where & (estimates[layer, is_mlp].abs() >= _floor(recorded_pairs, settings)).any(0)
        senders, entries = recorded_pairs.senders(layer, where, mlp=is_mlp), inputs_above(inputs, lowest)
        for part in recorded_pairs.batches(senders.n, entries):
            batch = senders.take(part)
            reads = [entry.read(batch.token) for entry in entries]
            output = recorded_pairs.send(batch, reads, frozen=recorded_pairs.frozen)
            values = {(entry.site, entry.layer): (entry, value) for entry, value in zip(entries, output, strict=True)}
            for receiver in above:
                for site in receiver.sites:
                    change = receiver_change(receiver, *values[site, receiver.node.layer], batch, first)
                    changes[site].setdefault(receiver.node, []).append(change)
            batches.append(batch)
            first += batch.n
    if not batches:
        return _join_rows([])
    step = recorded_pairs, join_senders(batches), settings, estimates
    return _join_rows(
        [_receiver_runs(*step, site, [*map(join_changes, of_site.values())]) for site, of_site in changes.items()]
    )


def _allowed(recorded_pairs: RecordedPairs, allowed: Allowed) -> Iterator[tuple[int, bool, Tensor]]:
    """The heads of each layer, then its MLP if MLPs are nodes: layer, whether it is the MLP, and which heads (one for
    an MLP) at which tokens are among the allowed nodes: (prompt, head, token)."""
    prompts, heads, length = recorded_pairs.n, recorded_pairs.anatomy.n_heads, recorded_pairs.pairs.length
    layers = sorted({*recorded_pairs.noise_z, *recorded_pairs.noise_mlp})
    for layer, is_mlp in product(layers, (False, True)):
        if layer not in (recorded_pairs.noise_mlp if is_mlp else recorded_pairs.noise_z):
            continue
        table = torch.full((prompts, 1 if is_mlp else heads, length), allowed is None)
        for node in allowed or ():
            if node.layer == layer and (node.head == MLP) == is_mlp:
                at = recorded_pairs.pairs.at(node.token)
                table[torch.nonzero(at >= 0).reshape(-1), 0 if is_mlp else node.head, at[at >= 0]] = True
        yield layer, is_mlp, table


def _floor(recorded_pairs: RecordedPairs, settings: SearchSettings) -> float:
    """The estimate below which a row is screened out."""
    return NEGLIGIBLE / ESTIMATE_ERROR * settings.share * abs(recorded_pairs.total)


def _receiver_runs(
    recorded_pairs: RecordedPairs,
    senders: Senders,
    settings: SearchSettings,
    estimates: Estimates | None,
    site: ReceiverSite,
    changes: Sequence[ReceiverChange],
) -> pd.DataFrame:
    """The receiver runs of one component, of rows that change a receiver and are not screened out."""
    component: Reading = "mlp" if site == "mlp_out" else site
    largest = torch.zeros(senders.n)
    for part in changes:
        largest[part.rows] = torch.maximum(largest[part.rows], part.relative_change.float().cpu())
    is_run, floor = largest > 0, _floor(recorded_pairs, settings)
    if settings.screen == "first-order":
        is_run &= (largest >= LARGE) | (estimate_effects(recorded_pairs, senders, changes).abs() >= floor)
    elif estimates is not None:
        is_run &= _of_senders(estimates, senders, component).abs() >= floor
    frames = []
    for rows in torch.nonzero(is_run).reshape(-1).split(AT_ONCE) if is_run.any() else ():
        batch, place = senders.take(rows), torch.full((senders.n,), -1)
        place[rows] = torch.arange(batch.n)
        edits = [edit for part in changes for edit in part.edits(place, batch.prompt)]
        after = recorded_pairs.receive(edits, batch.prompt)
        frames.append(_rows(recorded_pairs, component, batch, after, largest[rows]))
    return _join_rows(frames)


def _of_senders(estimates: Estimates, senders: Senders, component: Reading) -> Tensor:
    """The estimates of some senders (row,)."""
    values = torch.zeros(senders.n)
    for (layer, is_mlp), table in estimates.items():
        rows = torch.nonzero((senders.layer == layer) & ((senders.head == MLP) == is_mlp)).reshape(-1)
        own = senders.take(rows)
        values[rows] = table[READINGS.index(component), own.prompt, own.head.clamp(min=0), own.token]
    return values


def _rows(
    recorded_pairs: RecordedPairs, component: str, senders: Senders, after: Tensor, relative_change: Tensor
) -> pd.DataFrame:
    pairs, prompts, tokens = recorded_pairs.pairs, senders.prompt.tolist(), senders.token.tolist()
    return pd.DataFrame(
        {
            "prompt": [pairs.ids[prompt] for prompt in prompts],
            "component": component,
            "layer": senders.layer.numpy(),
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
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
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
    pairs: SearchPairs
    size: int
    mlps: bool = False
    _recorded_blocks: dict[int, RecordedPairs] = field(default_factory=dict)

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
    ) -> Evidence:
        return step_rows(self._record_block(block), receivers, allowed, settings)

    def losses(self, block: int) -> Evidence:
        return self._record_block(block).losses()

    def _record_block(self, block: int) -> RecordedPairs:
        if block not in self._recorded_blocks:
            part = slice(block * self.size, min((block + 1) * self.size, len(self.pairs.ids)))
            self._recorded_blocks[block] = record_pairs(self.surgeon, self.pairs.of(part), mlps=self.mlps)
        return self._recorded_blocks[block]


def step_rows(
    recorded_pairs: RecordedPairs, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
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

    pairs: SearchPairs
    settings: SearchSettings
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
            front = sorted({effect.node for effect in effects} - set(nodes), key=forward_order, reverse=True)
            nodes += front
            self.report(f"{len(front)} new: {', '.join(map(str, front)) or 'none; the search ends'}")
            if not any(map(depth, front)):
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
        below = [node for node in nodes if depth(node) < depth(receiver)]
        if not below:
            return []
        effects = self._select(self.step([receiver], below), below)
        return [Edge(item.node, receiver, item.component, item.effect, item.low, item.high) for item in effects]

    def step(self, receivers: Sequence[Node], allowed: Sequence[Node] | None = None) -> Evidence:
        """One step: the effect of senders via some receivers, or the direct effect if there are none.

        By the first-order screen the first block of prompts runs every sender; the others skip senders with almost no
        effect on the first (`_senders_with_effect`). With `allowed`, or another screen, no block depends on another.
        """
        if allowed is not None:
            settings = replace(self.settings, screen="none", min_attention=0.0)
            return self._blocks(self._numbers, receivers, allowed, settings)
        if self.settings.screen != "first-order" or not receivers:
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
        self, numbers: range, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
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
