"""Mean-ablated runs compute a few tokens. Ordinary edits that compute all tokens give the same result."""

from __future__ import annotations

import pytest
import torch

from rebinding.experiments.ablation import ablation_edits
from rebinding.surgery import ActiveHeads, Read, TorchSurgeon, derive
from rebinding.surgery.memory import in_parts
from tests.close import agree, is_changed
from tests.surgery.models import FAMILIES, Family, tiny, tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_masked_edits(family: Family) -> None:
    """Random active heads, several a row and none in the last row, against masked edits over the whole prompt."""
    model, prompts = tiny(family), tokens(family)
    surgeon = TorchSurgeon(model, derive(model))
    anatomy, length = surgeon.anatomy, prompts.shape[1]
    recording = surgeon.record(prompts, keep={"z"})
    means = [z.mean(0) for z in recording.sites["z"]]
    dice = torch.Generator().manual_seed(0)
    n_rows, n_places = 7, 14
    bounds = (n_rows - 1, anatomy.n_layers, anatomy.n_heads, length - 3)
    draws = [torch.randint(0, bound, (n_places,), generator=dice) for bound in bounds]
    active = ActiveHeads(draws[0], draws[1], draws[2], draws[3] + 3)
    source, readout = torch.arange(n_rows) % prompts.shape[0], torch.full((n_rows,), length - 1)
    base = surgeon.record_mean_ablated(prompts, means)
    actual = surgeon.run_mean_ablated(base, active, source=source, readout=readout, reduce=lambda logits, rows: logits)
    edits = ablation_edits(means, active, n_rows)
    (expected,) = surgeon.run(recording, edits, [Read("logits", at=[length - 1])], source=source)
    assert agree(actual, expected)
    (clean,) = surgeon.run(recording, [], [Read("logits", at=[length - 1])], source=source)
    no_heads = ActiveHeads(*(torch.empty(0, dtype=torch.long) for _ in range(4)))
    empty = surgeon.run_mean_ablated(base, no_heads, source=source, readout=readout, reduce=lambda logits, rows: logits)
    assert is_changed(expected, clean)
    assert is_changed(actual[:-1], empty[:-1])
    assert agree(actual[-1:], empty[-1:])


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_batch_that_does_not_fit_is_halved(limit: int) -> None:
    """Seven rows, at whatever size they fit: every row once, in its order."""
    sizes: list[int] = []

    def run(part: torch.Tensor) -> None:
        if part.numel() > limit:
            raise torch.OutOfMemoryError("pretend")
        sizes.extend(part.tolist())

    in_parts(torch.arange(7), 7, run)
    assert sizes == list(range(7))


def test_other_errors_are_not_retried() -> None:
    with pytest.raises(RuntimeError, match="something else"):
        in_parts(torch.arange(7), 7, fails)


def fails(part: torch.Tensor) -> None:
    raise RuntimeError("something else")
