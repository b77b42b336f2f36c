"""The unmodified model gives the pack's logits: model and tokenizer are loaded as they were meant."""

from __future__ import annotations

import torch

from rebinding.experiments.tokens import token_batch
from rebinding.surgery import Read
from tests.reference.pack import Pack

RAW = 1e-4
"""Agreement of raw float32 logits that the packs' authors suggest."""


def test_logits_equal_the_pack(pack: Pack, deviations: dict[str, float]) -> None:
    """Logits at the readout over the whole vocabulary, and the best token at every position."""
    entries = pack.entries["forward_check"]["value"]
    for entry in entries:
        tokens = token_batch(pack.prompts(entry["design"], [entry["id"]]))
        (logits,) = pack.surgeon.run(pack.surgeon.record(tokens), [], [Read("logits", at=range(tokens.shape[1]))])
        distance = float((logits[0, -1] - torch.tensor(entry["logits_at_colon"])).abs().max())
        deviations["forward"] = max(deviations.get("forward", 0.0), distance / RAW)
        assert distance <= RAW
        first, second = logits[0].topk(2).values.unbind(dim=-1)  # (token,)
        clear = first - second > 2 * RAW
        assert clear.float().mean() > 0.9
        assert torch.equal(logits[0].argmax(-1)[clear], torch.tensor(entry["argmax_per_position"])[clear])
