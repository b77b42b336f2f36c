"""Runs that compute less than a forward pass: one token in the last layer, and few heads among many that are held."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.experiments.ablation import ablation_edits
from rebinding.surgery import ActiveHeads, Edit, Read, TorchSurgeon, derive, replay
from rebinding.surgery.memory import in_parts
from tests.close import agree, is_changed
from tests.surgery.models import FAMILIES, Family, tiny, tokens
from tests.surgery.small_edits import edit_at, make_surgeon

LENGTH = 13
LAST = 3
"""The tiny models' last layer."""


def widths(
    surgeon: TorchSurgeon, edits: list[Edit], reads: list[Read], **options: Any
) -> tuple[list[int], list[Tensor]]:
    """Tokens that the last layer's MLP is given, and what is read."""
    prompts = tokens("llama")
    recording, widths_seen = surgeon.record(prompts, keep={"z"}), []
    mlp: Any = surgeon.anatomy.layer_modules(surgeon.model)[LAST].get_submodule(surgeon.anatomy.parts[LAST].mlp[0])
    handle = mlp.down_proj.register_forward_pre_hook(lambda _, args: widths_seen.append(args[0].shape[1]))
    try:
        return widths_seen, surgeon.run(recording, edits, reads, **options)
    finally:
        handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("readout", [[12], [10, 12]])
def test_reads_equal_the_full_layer(family: Family, readout: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    surgeon = make_surgeon(family)
    edits, reads = [edit_at(surgeon, "resid", 1, 4, LENGTH)], [Read("logits", at=readout)]
    widths_seen, (narrow,) = widths(surgeon, edits, reads)
    monkeypatch.setattr(replay, "count_unread_queries", lambda *_: 0)
    full_widths, (full,) = widths(surgeon, edits, reads)
    assert (widths_seen[-1], full_widths[-1]) == (LENGTH - readout[0], LENGTH - 4)
    assert agree(narrow, full)
    (clean,) = surgeon.run(surgeon.record(tokens("llama")), [], reads)
    assert is_changed(full, clean), "this edit would not tell a wrong layer from a right one"


@pytest.mark.parametrize(
    ("site", "layer", "read", "options"),
    [
        ("q", LAST, Read("logits", at=[12]), {}),
        ("z", LAST, Read("logits", at=[12]), {}),
        ("resid", 1, Read("z", at=[6], head=[(LAST, 0)]), {}),
        ("resid", 1, Read("mlp_out", at=[6], layer=LAST), {}),
        ("resid", 1, Read("resid", at=[4], layer=LAST + 1), {}),
    ],
    ids=["q edited", "z edited", "z read", "mlp read", "first token read"],
)
def test_layer_with_reads_runs_in_full(site: Any, layer: int, read: Read, options: dict[str, Any]) -> None:
    surgeon = make_surgeon("llama")
    reads = [read, Read("logits", at=[12])]
    edits = [edit_at(surgeon, site, layer, position, LENGTH) for position in (4, 12)]  # the second is seen by a read
    widths_seen, _ = widths(surgeon, edits, reads, **options)
    assert widths_seen[-1] == LENGTH - 4


def test_a_read_of_the_residual_below_the_top_is_narrow_too() -> None:
    surgeon = make_surgeon("llama")
    edit, read = edit_at(surgeon, "resid", 1, 4, LENGTH), Read("resid", at=[12], layer=LAST)
    (actual,) = surgeon.run(surgeon.record(tokens("llama")), [edit], [read])
    (all_tokens,) = surgeon.run(
        surgeon.record(tokens("llama")), [edit], [Read("resid", at=list(range(LENGTH)), layer=LAST)]
    )
    assert agree(actual[:, 0], all_tokens[:, 12])
    assert torch.isfinite(actual).all()


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
