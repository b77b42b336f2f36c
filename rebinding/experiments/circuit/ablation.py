"""Section 4.1: does a circuit do the task while every other head is ablated to its mean, and can it be pruned?

**Mean ablation.** The mean of z is per layer, absolute token and head, over a stated set of prompts. An ablated run
sets every head at every token to its mean, except that a head of the circuit keeps the value that it computes at the
token of its group's role. MLPs and norms are recomputed; everything happens in one forward pass.

A mean over prompts with fixed slots carries "go to slot 1" into the ablated model, and with it part of the circuit's
task. Prompts that counterbalance the slots cannot carry it. The evidence says which set was used.

Many circuits are evaluated as one batch of mean-ablated runs (`rebinding.surgery.mean_ablated`), which compute five
tokens of a prompt rather than all of it; `method="edits"` runs the same as ordinary edits on any surgeon.

**Pruning** by the published walk, and how much the result depends on the order.

Walk through the list of heads once; remove a head if the measure drops by less than 0.01 without it, and continue with
the smaller circuit. The measure is the mean logit of the answer, so the step is 0.01 logits on 50 prompts; for accuracy
the drop is relative, before / without - 1. `rebinding.experiments.circuit.request` is what the text describes
instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.random_draws import WALKS
from rebinding.experiments.tokens import CIRCUITS, Answers, as_table, positions, prompt_blocks, token_batch
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery import ActiveHeads, Edit, Read, Surgeon, TorchSurgeon
from rebinding.surgery.sites import Reduce
from rebinding.task.prompts import TokenizedPrompt

Method = Literal["batched", "edits"]


def mean_z(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], *, block: int | None = None) -> list[Tensor]:
    """The mean of z over prompts, per layer: (head, token, head_dim); summed in float64."""
    total: list[Tensor] = []
    for where in prompt_blocks(surgeon, prompts, block):
        z = surgeon.record(token_batch(prompts[where]), keep={"z"}).sites["z"]
        sums = [values.sum(dim=0, dtype=torch.float64) for values in z]
        total = sums if not total else [old + new for old, new in zip(total, sums, strict=True)]
    return [values / len(prompts) for values in total]


def evaluate(
    surgeon: Surgeon,
    prompts: Sequence[TokenizedPrompt],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    mean_set: str,
    method: Method = "batched",
    block: int | None = None,
) -> Evidence:
    """Evaluate circuits with all other heads ablated: a row per circuit and prompt."""
    settings: dict[str, Any] = {"ablation": "mean", "mean_set": mean_set}
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        measure = measurer(surgeon, prompts[where], answers.of(where), means, method)
        values = measure(list(circuits.values()))  # (circuit, prompt, measure)
        parts.append(CIRCUITS.evidence(as_table(list(circuits), ids[where], values), settings))
    return merge(parts)


def active_heads(circuits: Sequence[Circuit], prompts: Sequence[TokenizedPrompt], source: Tensor) -> ActiveHeads:
    """Where heads are not ablated; every circuit has as many of the rows, whose prompts are `source` (row,)."""
    n = len(source) // len(circuits)
    roles = {head.role for circuit in circuits for head in circuit.heads}
    at = {role: positions(prompts, role)[source] for role in roles}  # role -> (row,)
    active = [
        (number, layer, head, role)
        for number, circuit in enumerate(circuits)
        for layer, head, role in dict.fromkeys((node.layer, node.head, node.role) for node in circuit.heads)
    ]
    table = torch.tensor([place[:3] for place in active], dtype=torch.long).reshape(-1, 3)
    circuit, layers, heads = (column.repeat_interleave(n) for column in table.unbind(1))
    rows = circuit * n + torch.arange(n).repeat(len(active))
    by_head = [at[role][number * n : (number + 1) * n] for number, *_, role in active]
    places = torch.cat(by_head) if active else torch.empty(0, dtype=torch.long)
    return ActiveHeads(rows, layers, heads, places)


def measurer(
    surgeon: Surgeon,
    prompts: Sequence[TokenizedPrompt],
    answers: Answers,
    means: Sequence[Tensor],
    method: Method = "batched",
    *,
    apart: bool = False,
) -> Callable[[Sequence[Circuit]], Tensor]:
    """A function that measures circuits with all other heads ablated: (circuit, prompt, measure). Prompts are recorded
    once. With `apart` every circuit has prompts of its own: the first of k circuits the first of k equal parts.

    `batched` computes only the tokens with an active head and needs the torch surgeon; `edits` works on any surgeon.
    """
    readout, tokens = positions(prompts, "readout"), token_batch(prompts)
    if method == "batched" and isinstance(surgeon, TorchSurgeon):
        recorded = surgeon.record_mean_ablated(tokens, means)

        def run(active: ActiveHeads, source: Tensor, take: Reduce) -> Tensor:
            return surgeon.run_mean_ablated(recorded, active, source=source, readout=readout[source], reduce=take)

    else:
        recording = surgeon.record(tokens)

        def run(active: ActiveHeads, source: Tensor, take: Reduce) -> Tensor:
            read = Read("logits", positions=readout[source][:, None], reduce=take)
            return surgeon.run(recording, ablation_edits(means, active, source.numel()), [read], source=source)[0]

    def measure(circuits: Sequence[Circuit]) -> Tensor:
        source = torch.arange(len(prompts)).repeat(1 if apart else len(circuits))  # (row,)
        values = run(active_heads(circuits, prompts, source), source, answers.take(source))
        return values.reshape(len(circuits), len(source) // len(circuits), -1)

    return measure


def ablation_edits(means: Sequence[Tensor], active: ActiveHeads, n_rows: int) -> list[Edit]:
    """Set z to its mean everywhere except at the active heads."""
    edits = []
    for layer, mean in enumerate(means):
        if mean.ndim < 3:
            continue  # no heads
        n_heads, n_tokens, _ = mean.shape
        where = torch.ones(n_rows, n_heads, n_tokens, dtype=torch.bool)  # (row, head, token)
        of_layer = active.layers == layer
        where[active.rows[of_layer], active.heads[of_layer], active.positions[of_layer]] = False
        edits.append(Edit("z", layer, mean[None], positions=range(n_tokens), heads=range(n_heads), where=where))
    return edits


Score = Callable[[Sequence[Circuit]], list[float]]
"""Scores of many circuits, so that they can be one batch."""


@dataclass(frozen=True)
class Trial:
    """One step of a walk: the measure with and without a head, the drop, and whether the head was removed."""

    head: CircuitHead
    before: float
    without: float
    drop: float
    removed: bool

    @property
    def columns(self) -> dict[str, float | bool]:
        """The columns of a table, except those of the head."""
        return {"before": self.before, "drop": self.drop, "removed": self.removed}


@dataclass(frozen=True)
class Pruned:
    """The pruned circuit, and every trial of the walk."""

    circuit: Circuit
    trials: tuple[Trial, ...]


def _drop(before: float, without: float, relative: bool) -> float:
    if not relative:
        return before - without
    return float("inf") if without == 0 else before / without - 1


def in_orders(circuit: Circuit, orders: int, seed: int = WALKS) -> list[Circuit]:
    """The circuit in the given order of its heads, and in shuffled orders."""
    generator = random.Random(seed)
    circuits = [circuit]
    for _ in range(orders - 1):
        shuffled = list(circuit.heads)
        generator.shuffle(shuffled)
        circuits.append(Circuit(tuple(shuffled), circuit.settings))
    return circuits


def walk(circuits: Sequence[Circuit], score: Score, *, threshold: float = 0.01, relative: bool = False) -> list[Pruned]:
    """Walk through circuits of equal size in parallel: the trials of a step are one batch."""
    remaining, current = list(circuits), score(circuits)
    trials: list[list[Trial]] = [[] for _ in circuits]
    for step in zip(*(circuit.heads for circuit in circuits), strict=True):
        shorter = [circuit.without([head]) for circuit, head in zip(remaining, step, strict=True)]
        for number, without in enumerate(score(shorter)):
            drop = _drop(current[number], without, relative)
            trials[number].append(Trial(step[number], current[number], without, drop, drop < threshold))
            if drop < threshold:
                remaining[number], current[number] = shorter[number], without
    return [Pruned(circuit, tuple(steps)) for circuit, steps in zip(remaining, trials, strict=True)]
