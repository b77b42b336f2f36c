"""Section 4.1, the other way round: is a circuit needed, or do other heads do what it does when it is gone?

Its heads, each at the token of its group's role, are set to their means, and every other head computes what it then
computes. A circuit that does the task alone may still not be needed: heads beside it can carry the same answer, or
take over. To compare with, as much is taken away elsewhere: as many heads at each role in each layer, not its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.answers import Answers, as_table
from rebinding.experiments.circuit.ablation import live_places
from rebinding.experiments.circuit.request import KNOCKED
from rebinding.experiments.tokens import BLOCK, blocks, moved, positions, token_batch
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
    block: int = BLOCK,
) -> Evidence:
    """Every circuit on every prompt, its heads ablated and nothing else: a row per circuit and prompt."""
    parts = []
    for where in blocks(len(prompts), block):
        some = prompts[where]
        source = torch.arange(len(some)).repeat(len(circuits))
        take = answers.of(where).take(source)
        read = Read("logits", positions=positions(some, "readout")[source][:, None], take=take)
        places = live_places(list(circuits.values()), some)
        recording = surgeon.record(token_batch(some), keep={"z"})
        (values,) = surgeon.run(recording, edits_at(means, places), [read], source=source, allow_noop=True)
        change = changes(recording.sites["z"], means, places, source)
        frame = as_table(list(circuits), ids[where], values).assign(moved=change.cpu().numpy())
        parts.append(KNOCKED.evidence(frame, {"ablation": "mean, of these heads alone"}))
    return merge(parts)


def changes(z: Sequence[Tensor], means: Sequence[Tensor], places: ActiveHeads, source: Tensor) -> Tensor:
    """How far each row's heads are from their means (row,), by the one that is farthest; rows continue `source`.

    A random set may stand at its means already, as heads of a planted model do that say the same everywhere. The
    circuit may not: taking it out would then be no test of anything, and the gate `edits_moved` says so.
    """
    found = torch.zeros(source.numel())
    for layer, (own, mean) in enumerate(zip(z, means, strict=True)):
        here = places.layers == layer
        row, heads, tokens = (part[here] for part in (places.rows, places.heads, places.positions))
        change = moved(mean[heads, tokens].to(own.device), own[source[row], heads, tokens])  # (place,)
        found.scatter_reduce_(0, row, change.cpu(), "amax")
    return found


def edits_at(means: Sequence[Tensor], places: ActiveHeads) -> list[Edit]:
    """Set z to its mean at these places and nowhere else."""
    edits = []
    for layer, mean in enumerate(means):
        here = places.layers == layer
        if not bool(here.any()):
            continue
        rows, row = places.rows[here].unique(return_inverse=True)
        heads, head = places.heads[here].unique(return_inverse=True)
        tokens, token = places.positions[here].unique(return_inverse=True)
        where = torch.zeros(len(rows), len(heads), len(tokens), dtype=torch.bool)  # (row, head, token)
        where[row, head, token] = True
        value = mean[heads][:, tokens][None]  # (1, head, token, head_dim)
        edits.append(Edit("z", layer, value, positions=tokens, heads=heads, rows=rows, where=where))
    return edits
