"""Section 4.1, E': does the residual stream at a token of the context still encode the slot of its box?

Pruning removes heads and keeps the residual stream, which may already hold what the heads of group E would write. This
experiment replaces that part and nothing else. In a circuit with all other heads mean-ablated, the stream at one token
of the context is set to that of the same word in a noise prompt, run in the same way, whose statements are moved by one
slot. The word is the same; only what the stream says about the slot of the statement differs. The edit is at the layers
whose heads are said to read the stream there.

If the stream of a model holds nothing but the word, the edit changes nothing. That is an outcome: the relative change
of the stream is part of the evidence, and not a gate.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.answers import MEASURES, Answers
from rebinding.experiments.circuit.ablation import ablation_edits, active_heads
from rebinding.experiments.circuit.request import STREAM
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Circuit
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.surgery.sweep import sweep
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
    block: int | None = None,
) -> Evidence:
    """The answer's margin in a circuit before and after the noise's stream is set at `role`: a row per prompt."""
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        batch, n = prompts[where], len(prompts[where])
        places = positions(batch, role)  # (prompt,)
        streams = _streams(surgeon, batch, circuit, means, places, layers)
        noise_streams = _streams(surgeon, noise[where], circuit, means, positions(noise[where], role), layers)
        ablation = ablation_edits(means, active_heads([circuit], batch, torch.arange(n)), n)
        stream = [
            Edit("resid", layer, value, positions=places[:, None])
            for layer, value in zip(layers, noise_streams, strict=True)
        ]
        take, readout = answers.of(where).take(torch.arange(n)), positions(batch, "readout")[:, None]
        read = Read("logits", positions=readout, reduce=take)
        recording = surgeon.record(token_batch(batch))
        (values,) = sweep(surgeon, recording, [ablation, ablation + stream], [read], allow_noop=True)
        change = torch.stack(
            [relative_change(new, old)[:, 0] for new, old in zip(noise_streams, streams, strict=True)]
        ).amax(0)  # (prompt,)
        before, after = values[..., MARGIN].cpu()
        rows = {
            "prompt": ids[where],
            "before": before.numpy(),
            "after": after.numpy(),
            "relative_change": change.cpu().numpy(),
        }
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
    """The residual stream at each layer's input, at one token of each prompt, in the circuit: (prompt, 1, hidden)."""
    edits = ablation_edits(means, active_heads([circuit], prompts, torch.arange(len(prompts))), len(prompts))
    reads = [Read("resid", layer, positions=at[:, None]) for layer in layers]
    return surgeon.run(surgeon.record(token_batch(prompts)), edits, reads, allow_noop=True)
