"""Section 4.1: does a circuit do the task while every other head is ablated to its mean?

**Mean ablation.** The mean of z is taken per layer, absolute token and head over a stated set of prompts. In an ablated
run every head at every token is set to its mean, except that a head of the circuit keeps the value that it computes at
the token of its group's role. MLPs and norms are recomputed; everything happens in one forward pass.

A mean over prompts of fixed slots carries "go to slot 1" into the ablated model, and with it part of what the circuit
is supposed to do. Prompts that counterbalance the slots cannot carry it. Which set was used is part of the evidence.

Many circuits are evaluated as one batch of mean-ablated runs (`rebinding.surgery.mean_ablated`), which compute five
tokens of a prompt rather than all of it; `method="edits"` runs the same as ordinary edits on any surgeon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.answers import CIRCUITS, Answers, as_table
from rebinding.experiments.tokens import BLOCK, blocks, positions, token_batch
from rebinding.paper.circuit import Circuit
from rebinding.surgery import ActiveHeads, Edit, Read, Surgeon, TorchSurgeon
from rebinding.surgery.sites import Take
from rebinding.task.prompts import Encoded

Method = Literal["held", "edits"]


def mean_z(surgeon: Surgeon, prompts: Sequence[Encoded], *, block: int = BLOCK) -> list[Tensor]:
    """The mean of z over prompts, per layer: (head, token, head_dim); summed in float64."""
    total: list[Tensor] = []
    for where in blocks(len(prompts), block):
        z = surgeon.record(token_batch(prompts[where]), keep={"z"}).sites["z"]
        sums = [values.sum(dim=0, dtype=torch.float64) for values in z]
        total = sums if not total else [old + new for old, new in zip(total, sums, strict=True)]
    return [values / len(prompts) for values in total]


def evaluate(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    mean_set: str,
    method: Method = "held",
    block: int = BLOCK,
) -> Evidence:
    """Every circuit on every prompt, all else ablated: a row per circuit and prompt."""
    settings: dict[str, Any] = {"ablation": "mean", "mean_set": mean_set}
    shards = []
    for where in blocks(len(prompts), block):
        part = answers.of(where)
        run = measurer(surgeon, prompts[where], part, means, method)
        values = run(list(circuits.values()))  # (circuit, prompt, measure)
        shards.append(CIRCUITS.evidence(as_table(list(circuits), ids[where], values), settings))
    return merge(shards)


def live_places(circuits: Sequence[Circuit], prompts: Sequence[Encoded]) -> ActiveHeads:
    """Where heads stay alive, for rows ordered circuit, prompt."""
    n = len(prompts)
    roles = {head.role for circuit in circuits for head in circuit.heads}
    at = {role: positions(prompts, role) for role in roles}  # role -> (prompt,)
    kept = [
        (number, layer, head, role)
        for number, circuit in enumerate(circuits)
        for layer, head, role in dict.fromkeys((one.layer, one.head, one.role) for one in circuit.heads)
    ]
    table = torch.tensor([one[:3] for one in kept], dtype=torch.long).reshape(-1, 3)
    circuit, layers, heads = (column.repeat_interleave(n) for column in table.unbind(1))
    rows = circuit * n + torch.arange(n).repeat(len(kept))
    places = torch.cat([at[role] for *_, role in kept]) if kept else torch.empty(0, dtype=torch.long)
    return ActiveHeads(rows, layers, heads, places)


def measurer(
    surgeon: Surgeon, prompts: Sequence[Encoded], answers: Answers, means: Sequence[Tensor], method: Method = "held"
) -> Callable[[Sequence[Circuit]], Tensor]:
    """Measures circuits on prompts that are recorded once, all else ablated: (circuit, prompt, measure).

    Held runs compute the tokens at which a head is alive, and are the torch surgeon's alone; edited ones serve any.
    """
    readout, tokens = positions(prompts, "readout"), token_batch(prompts)
    if method == "held" and isinstance(surgeon, TorchSurgeon):
        held = surgeon.record_mean_ablated(tokens, means)

        def run(live: ActiveHeads, source: Tensor, take: Take) -> Tensor:
            return surgeon.run_mean_ablated(held, live, source=source, readout=readout[source], take=take)

    else:
        recording = surgeon.record(tokens)

        def run(live: ActiveHeads, source: Tensor, take: Take) -> Tensor:
            read = Read("logits", positions=readout[source][:, None], take=take)
            return surgeon.run(recording, ablation_edits(means, live, source.numel()), [read], source=source)[0]

    def measure(circuits: Sequence[Circuit]) -> Tensor:
        source = torch.arange(len(prompts)).repeat(len(circuits))
        values = run(live_places(circuits, prompts), source, answers.take(source))
        return values.reshape(len(circuits), len(prompts), -1)

    return measure


def ablation_edits(means: Sequence[Tensor], live: ActiveHeads, n_rows: int) -> list[Edit]:
    """Set z to its mean everywhere but at the live places."""
    edits = []
    for layer, mean in enumerate(means):
        n_heads, n_tokens, _ = mean.shape
        where = torch.ones(n_rows, n_heads, n_tokens, dtype=torch.bool)  # (row, head, token)
        here = live.layers == layer
        where[live.rows[here], live.heads[here], live.positions[here]] = False
        edits.append(Edit("z", layer, mean[None], positions=range(n_tokens), heads=range(n_heads), where=where))
    return edits
