"""Fake evidence of the right shape, from the block that was run, and gates that pass. They lead claims to their last
request.

A claim may request more evidence where the model does the task, where path patching finds heads, and where pruning
leaves some. So every answer is right, pruning removes nothing, and in path patching exactly the known heads of a group
lower the score. A stage that keeps a fixed number of heads, whatever their scores, keeps other heads too: spread over
the layers below its receivers, and different ones in every discovery. Made-up numbers say nothing about a model, so
gates request their evidence and always pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pandas as pd

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import describe
from rebinding.experiments.attention import AttentionToRoles
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.circuit.request import Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.tracing.request import OfMode
from rebinding.paper.circuit import Circuit, Head
from rebinding.study.engine import Session
from rebinding.study.gates import Gates
from rebinding.task.designs import Design
from rebinding.verdicts import Gate

RIGHT = ("hit", "right")
"""Columns that say whether an answer is right."""
FALLS, STAYS, RISES = -1.0, 0.0, 0.5
"""Changes of the answer's lead by a known head, by another head that a stage keeps, and by any other. Changes of the
answer's probability are half as large, as shares."""


def complete_evidence(request: Request, block: Evidence, heads: Circuit, layers: int, width: int) -> Evidence:
    """The evidence of a request on a model with `layers` of `width` heads. `block` is the evidence of one block,
    perhaps of another request that costs the same."""
    rows = block.rows
    if isinstance(request, OnPrompts) and "prompt" in rows:
        rows = _for_every_prompt(rows, request.prompts.ids)
    right: dict[str, Any] = {name: rows[name].dtype.type(1) for name in RIGHT if name in rows}
    rows = rows.assign(**right)
    match request:
        case Shifts():
            rows = _for_every_batch(rows, len(request.batches), request.draws)
        case LabelExchange():
            rows = _for_every_batch(rows, len(request.batches), 1)
        case OfMode():
            rows = rows.assign(mode=request.mode)
        case AttentionToRoles():
            rows = rows.assign(attention=rows["uniform"])  # shares, whose sum over tokens is a share
        case Pruning():
            rows = _unpruned(request)
        case Paths() if request.senders is None:
            rows = _with_scores(rows, ranked(request, heads, layers, width), request)
    return describe(request, Evidence(block.experiment, rows, block.settings))


def _for_every_prompt(rows: pd.DataFrame, ids: tuple[int, ...]) -> pd.DataFrame:
    """The rows of a block, repeated for all prompts."""
    block_ids = list(dict.fromkeys(rows["prompt"]))
    tables = []
    for start in range(0, len(ids), len(block_ids)):
        new_ids = dict(zip(block_ids, ids[start : start + len(block_ids)], strict=False))
        table = rows if len(new_ids) == len(block_ids) else rows[rows["prompt"].isin(list(new_ids))]
        tables.append(table.assign(prompt=table["prompt"].map(new_ids)))
    return pd.concat(tables, ignore_index=True)


def _for_every_batch(rows: pd.DataFrame, batches: int, draws: int) -> pd.DataFrame:
    begins = range(0, batches * draws, draws)
    return pd.concat([rows.assign(draw=rows["draw"] + first) for first in begins], ignore_index=True)


def _unpruned(request: Pruning) -> pd.DataFrame:
    """Pruning walks that remove no head, of a circuit that does as well as the model."""
    scores: dict[str, Any] = {"full_model": 1.0, "before": 1.0, "drop": 1.0, "removed": False}
    return pd.DataFrame(
        [{**head._asdict(), "order": order, **scores} for order in range(request.orders) for head in request.circuit]
    )


def _with_scores(rows: pd.DataFrame, changes: Callable[[Head], float], request: Paths) -> pd.DataFrame:
    heads = dict.fromkeys(zip(rows["layer"], rows["head"], strict=True))
    change = {head: changes((int(head[0]), int(head[1]))) for head in heads}
    by_row = pd.Series([change[head] for head in zip(rows["layer"], rows["head"], strict=True)], index=rows.index)
    patched = {f"{name}_patch": rows[f"{name}_orig"] + by_row for name in ("logit", "lead")}
    return rows.assign(**patched, p_patch=rows["p_orig"] * (1 + by_row / 2))


def ranked(request: Paths, heads: Circuit, layers: int, width: int) -> Callable[[Head], float]:
    """The change of the answer by each sender."""
    group_heads = set(heads.group(request.stage.group))
    fillers = set(islice(_fillers(request, heads, layers, width), max(0, request.stage.top_k - len(group_heads))))
    return lambda head: FALLS if head in group_heads else STAYS if head in fillers else RISES


def _fillers(request: Paths, heads: Circuit, layers: int, width: int) -> Iterator[Head]:
    """Heads of no group, one of each layer in turn. Stages whose senders act at the same token use different halves of
    a layer, as a head is in one of their groups only; and each request starts at another head."""
    below = max((layer for layer, _ in request.receivers), default=layers) or layers
    circuit_heads = {(node.layer, node.head) for node in heads.heads}
    first = int(request.key[:8], 16)
    half = request.stage.group == "B"
    free = {
        layer: [(layer, head) for head in range(width) if (layer, head) not in circuit_heads and head % 2 == half]
        for layer in range(below)
    }
    queues = {layer: row[first % len(row) :] + row[: first % len(row)] for layer, row in free.items() if row}
    while queues:
        for layer in list(queues):
            yield queues[layer].pop(0)
            if not queues[layer]:
                del queues[layer]


class PassingGates(Gates):
    """The gates of a model that does the task, whose replays are exact and whose groups act."""

    def check_replays(self, boxes: int) -> Iterator[Gate]:
        return map(_passed, super().check_replays(boxes))

    def check_noise_floor(self, counts: float | None, boxes: int = 3) -> Iterator[Gate]:
        return map(_passed, super().check_noise_floor(counts, boxes))

    def check_guessing(self, boxes: int) -> Gate:
        return _passed(super().check_guessing(boxes))

    def check_chance(self, session: Session, stories: Design, n: int, cut: int = 0) -> Gate:
        return _passed(super().check_chance(session, stories, n, cut))

    def check_group(self, circuit: Circuit, group: str, heads: Sequence[Head], origin: str) -> Gate:
        return _passed(super().check_group(circuit, group, heads, origin))


def _passed(gate: Gate) -> Gate:
    return replace(gate, passed=True)
