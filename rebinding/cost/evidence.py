"""Evidence of the right shape from a block that was rehearsed. Its numbers are made up, such that claims go on asking.

A claim may ask for more where the model does the task, where path patching finds heads, and where pruning leaves some.
So every answer is right, pruning leaves everything, and in path patching exactly the known heads of a group fall. A
stage that keeps as many heads as it says, whatever their scores, keeps others beside them: spread over the layers below
its receivers, and not the same ones in every discovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pandas as pd

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import describe
from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.circuit.request import Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.swap_labels.request import LabelExchange
from rebinding.experiments.tracing.request import OfMode
from rebinding.paper.circuit import Circuit, Head

RIGHT = ("hit", "right")
"""Columns that say whether an answer is right."""
FALLS, STAYS, RISES = -1.0, 0.0, 0.5
"""Changes of the answer's lead: of a known head, of another that a stage keeps, and of all others. Of the answer's
probability they are half as large, as shares."""


def whole_evidence(request: Request, block: Evidence, heads: Circuit, layers: int, width: int) -> Evidence:
    """The evidence of a request on a model with so many layers of `width` heads; `block` is that of one block, perhaps
    of another request that costs the same."""
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
    """The rows of a block again and again, as those of all prompts."""
    known = list(dict.fromkeys(rows["prompt"]))
    tables = []
    for start in range(0, len(ids), len(known)):
        names = dict(zip(known, ids[start : start + len(known)], strict=False))
        some = rows if len(names) == len(known) else rows[rows["prompt"].isin(list(names))]
        tables.append(some.assign(prompt=some["prompt"].map(names)))
    return pd.concat(tables, ignore_index=True)


def _for_every_batch(rows: pd.DataFrame, batches: int, draws: int) -> pd.DataFrame:
    begins = range(0, batches * draws, draws)
    return pd.concat([rows.assign(draw=rows["draw"] + first) for first in begins], ignore_index=True)


def _unpruned(request: Pruning) -> pd.DataFrame:
    """Walks on which no head goes, of a circuit that does as well as the model."""
    told: dict[str, Any] = {"whole": 1.0, "before": 1.0, "drop": 1.0, "removed": False}
    return pd.DataFrame(
        [{**one._asdict(), "order": order, **told} for order in range(request.orders) for one in request.circuit]
    )


def _with_scores(rows: pd.DataFrame, changes: Callable[[Head], float], request: Paths) -> pd.DataFrame:
    heads = dict.fromkeys(zip(rows["layer"], rows["head"], strict=True))
    change = {head: changes((int(head[0]), int(head[1]))) for head in heads}
    by_row = pd.Series([change[head] for head in zip(rows["layer"], rows["head"], strict=True)], index=rows.index)
    patched = {f"{name}_patch": rows[f"{name}_orig"] + by_row for name in ("logit", "lead")}
    return rows.assign(**patched, p_patch=rows["p_orig"] * (1 + by_row / 2))


def ranked(request: Paths, heads: Circuit, layers: int, width: int) -> Callable[[Head], float]:
    """How the answer changes with each sender."""
    known = set(heads.group(request.stage.group))
    others = set(islice(_others(request, heads, layers, width), max(0, request.stage.keep - len(known))))
    return lambda head: FALLS if head in known else STAYS if head in others else RISES


def _others(request: Paths, heads: Circuit, layers: int, width: int) -> Iterator[Head]:
    """Heads of no group, a layer after the other and around again. Stages whose senders stand at the same token take
    them from different halves of a layer, as a head is in one of their groups; and each request begins elsewhere."""
    below = max((layer for layer, _ in request.receivers), default=layers) or layers
    taken = {(one.layer, one.head) for one in heads.heads}
    first = int(request.key[:8], 16)
    half = request.stage.group == "B"
    left = {
        layer: [(layer, head) for head in range(width) if (layer, head) not in taken and head % 2 == half]
        for layer in range(below)
    }
    turned = {layer: free[first % len(free) :] + free[: first % len(free)] for layer, free in left.items() if free}
    while turned:
        for layer in list(turned):
            yield turned[layer].pop(0)
            if not turned[layer]:
                del turned[layer]
