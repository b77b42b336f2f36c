"""Stages A and B of path patching on any library's forward: every sender a pass, or several senders stacked in one.

Nothing is frozen, as in the published helpers: a sender's output at the readout is replaced by its value in the noise
prompt and everything after it follows. Stage A reads the answer's logit. Stage B reads the receivers' queries, and a
second pass of the clean prompt, into which they are written, tells the logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peers.forwards import Forward, Place
from rebinding.paper.circuit import Head


@dataclass(frozen=True, eq=False)
class Task:
    """Clean prompts (prompt, token), what each head says in the noise prompts at the readout, layer by layer
    (prompt, head, dim), and the answers' tokens (prompt,)."""

    clean: Tensor
    noise_z: Sequence[Tensor]
    labels: Tensor

    @property
    def at(self) -> int:
        """The readout."""
        return self.clean.shape[1] - 1


@torch.no_grad()
def stage(forward: Forward, task: Task, senders: Sequence[Head], receivers: Sequence[Head] = ()) -> Tensor:
    """The answers' logits after each sender's patch, (sender, prompt); each sender in a batch of its own."""
    return torch.cat([stacked(forward, task, [sender], receivers) for sender in senders])


@torch.no_grad()
def stacked(forward: Forward, task: Task, senders: Sequence[Head], receivers: Sequence[Head] = ()) -> Tensor:
    """The same, all senders in one batch, rows ordered sender, prompt."""
    n = len(task.clean)
    tokens = task.clean.repeat(len(senders), 1)  # (sender x prompt, token)
    sets: dict[Place, Tensor] = {}
    for number, (layer, head) in enumerate(senders):
        value = task.noise_z[layer][:, head]  # (prompt, dim)
        full = torch.full((len(tokens), value.shape[1]), float("nan"))  # (sender x prompt, dim)
        full[number * n : (number + 1) * n] = value
        sets[Place("z", layer, head)] = full
    labels = task.labels.repeat(len(senders))
    reads = tuple(sorted({layer for layer, _ in receivers}))
    logits, queries = forward(tokens, task.at, sets, reads)
    if receivers:
        received = {Place("q", layer, head): queries[layer][:, head] for layer, head in receivers}
        logits, _ = forward(tokens, task.at, received)
    return logits.gather(1, labels[:, None]).reshape(len(senders), n)
