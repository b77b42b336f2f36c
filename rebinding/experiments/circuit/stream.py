"""Section 4.1, E': does the residual stream at a token of the context still say where its box is bound?

Pruning removes heads and leaves the residual stream, so what the heads of group E would have written may stand there
all the same. Here it is taken away and nothing else is. In a circuit with all other heads held at their means, the
stream at one token of the context is set to that of the same word in a noise prompt, run alike, whose statements have
moved on by one slot. The word is the same; what differs is what the stream says beside the word, of the place where
the statement stands. It is set at the layers whose heads are said to read it there.

At a model whose stream says nothing beside the word the edit changes nothing. That is an outcome: how far the streams
are apart is part of the evidence, and no gate.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.answers import MEASURES, Answers
from rebinding.experiments.circuit.ablation import ablation_edits, live_places
from rebinding.experiments.circuit.request import STREAM
from rebinding.experiments.tokens import BLOCK, blocks, moved, positions, token_batch
from rebinding.paper.circuit import Circuit
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.task.prompts import Encoded

MARGIN = MEASURES.index("margin")


def exchange_stream(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    noise: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuit: Circuit,
    means: Sequence[Tensor],
    *,
    role: str,
    layers: Sequence[int],
    block: int = BLOCK,
) -> Evidence:
    """The answer's margin in a circuit before and after the stream at `role` is the noise's: a row per prompt."""
    parts = []
    for where in blocks(len(prompts), block):
        some, n = prompts[where], len(prompts[where])
        at = positions(some, role)  # (prompt,)
        own = _streams(surgeon, some, circuit, means, at, layers)
        other = _streams(surgeon, noise[where], circuit, means, positions(noise[where], role), layers)
        source, second = torch.arange(n).repeat(2), torch.arange(n, 2 * n)  # rows: all prompts, and all again edited
        edits = ablation_edits(means, live_places([circuit, circuit], some), 2 * n)
        edits += [
            Edit("resid", layer, value, positions=at[:, None], rows=second)
            for layer, value in zip(layers, other, strict=True)
        ]
        take = answers.of(where).take(source)
        read = Read("logits", positions=positions(some, "readout")[source][:, None], take=take)
        (found,) = surgeon.run(surgeon.record(token_batch(some)), edits, [read], source=source, allow_noop=True)
        change = torch.stack([moved(one, was)[:, 0] for one, was in zip(other, own, strict=True)]).amax(0)  # (prompt,)
        before, after = found[:, MARGIN].cpu().reshape(2, n)
        rows = {"prompt": ids[where], "before": before.numpy(), "after": after.numpy(), "moved": change.cpu().numpy()}
        parts.append(STREAM.evidence(pd.DataFrame(rows), {"ablation": "mean", "token": role, "layers": list(layers)}))
    return merge(parts)


def _streams(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    circuit: Circuit,
    means: Sequence[Tensor],
    at: Tensor,
    layers: Sequence[int],
) -> list[Tensor]:
    """What stands in front of each layer at one token of each prompt, in the circuit: (prompt, 1, hidden)."""
    edits = ablation_edits(means, live_places([circuit], prompts), len(prompts))
    reads = [Read("resid", layer, positions=at[:, None]) for layer in layers]
    return surgeon.run(surgeon.record(token_batch(prompts)), edits, reads, allow_noop=True)
