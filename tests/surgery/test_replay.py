"""The last layer is computed for the tokens that are read, and in full as soon as anything in it is edited or read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, TorchSurgeon, replay
from tests.close import agree, is_changed
from tests.surgery.models import FAMILIES, Family, tokens
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
