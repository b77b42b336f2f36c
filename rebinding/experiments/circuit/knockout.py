"""Knockout: is a circuit needed, or do other heads do its task when it is ablated? (Section 4.1 the other way round.)

The circuit's heads, each at the token of its group's role, are set to their means; all other heads are computed. A
circuit that does the task alone may still not be needed: other heads can carry the same answer, or take over. The
comparison is a random set of other heads with as many at each role in each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.answers import Answers, as_table
from rebinding.experiments.circuit.ablation import active_heads
from rebinding.experiments.circuit.request import KNOCKED
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Circuit
from rebinding.surgery import ActiveHeads, Edit, Read, Surgeon
from rebinding.task.prompts import Encoded


def knock_out(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    block: int | None = None,
) -> Evidence:
    """Ablate only the heads of each circuit: a row per circuit and prompt."""
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        batch = prompts[where]
        source = torch.arange(len(batch)).repeat(len(circuits))
        take = answers.of(where).take(source)
        read = Read("logits", positions=positions(batch, "readout")[source][:, None], reduce=take)
        ablated = active_heads(list(circuits.values()), batch, source)
        recording = surgeon.record(token_batch(batch), keep={"z"})
        (values,) = surgeon.run(recording, edits_at(means, ablated), [read], source=source, allow_noop=True)
        change = changes(recording.sites["z"], means, ablated, source)
        frame = as_table(list(circuits), ids[where], values).assign(relative_change=change.cpu().numpy())
        parts.append(KNOCKED.evidence(frame, {"ablation": "mean, of these heads alone"}))
    return merge(parts)


def changes(z: Sequence[Tensor], means: Sequence[Tensor], places: ActiveHeads, source: Tensor) -> Tensor:
    """The largest relative change from a head to its mean in each row (row,); rows continue `source`.

    A random set may already equal its means: some heads of a planted model give the same output everywhere. The circuit
    may not: its ablation would be a no-op and test nothing, and the gate `edits_change_values` fails.
    """
    largest = torch.zeros(source.numel())
    for layer, (own, mean) in enumerate(zip(z, means, strict=True)):
        of_layer = places.layers == layer
        if not bool(of_layer.any()):
            continue
        row, heads, tokens = (part[of_layer] for part in (places.rows, places.heads, places.positions))
        change = relative_change(mean[heads, tokens].to(own.device), own[source[row], heads, tokens])  # (place,)
        largest.scatter_reduce_(0, row, change.cpu(), "amax")
    return largest


def edits_at(means: Sequence[Tensor], places: ActiveHeads) -> list[Edit]:
    """Set z to its mean at the heads in `places`, and nowhere else."""
    edits = []
    for layer, mean in enumerate(means):
        of_layer = places.layers == layer
        if not bool(of_layer.any()):
            continue
        rows, row = places.rows[of_layer].unique(return_inverse=True)
        heads, head = places.heads[of_layer].unique(return_inverse=True)
        tokens, token = places.positions[of_layer].unique(return_inverse=True)
        where = torch.zeros(len(rows), len(heads), len(tokens), dtype=torch.bool)  # (row, head, token)
        where[row, head, token] = True
        value = mean[heads][:, tokens][None]  # (1, head, token, head_dim)
        edits.append(Edit("z", layer, value, positions=tokens, heads=heads, rows=rows, where=where))
    return edits
