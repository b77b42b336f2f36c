"""The torch surgeon and the nnsight surgeon give the same, where nnsight finds the sites."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, SurgeryError
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import Scope, Site
from tests.everyday import sampled
from tests.families.engines import error_of_rows, make_batch, make_surgeon, tolerance
from tests.families.models import EVERYDAY, LENGTH, Family, RandomModel
from tests.surgery.small_edits import CELLS, Cell


@cache
def make_nnsight_surgeon(model: RandomModel) -> NNsightSurgeon:
    surgeon, _ = make_surgeon(model)
    return NNsightSurgeon(model.build(), surgeon.anatomy)


WITHOUT_COPIES = frozenset({"k head", "v head", "k_rot", "v_seen"})
"""Copies of single query heads in families whose attention function repeats no keys and values."""
FROZEN = frozenset(str(cell) for cell in CELLS if cell.attention == "frozen")
REFUSED: dict[Family, frozenset[str]] = {
    "gpt_neox": WITHOUT_COPIES,
    "gpt_neox_sequential": WITHOUT_COPIES,
    "opt": WITHOUT_COPIES,
    "gpt2": WITHOUT_COPIES,
    "stablelm": frozenset({"k head"}),  # rotates a part of each key
    "stablelm_parallel": frozenset({"k head"}),
    "phi": frozenset({"k head"}),
    "nemotron": frozenset(),
    "gpt_oss": frozenset({"scores"}),  # a sink is in the softmax
    "llama4_text": frozenset({"k head"}),  # its rotation is one of complex numbers
    "qwen3_next": FROZEN,  # the outputs of layers without heads are not held
    "qwen3_5_text": FROZEN,
    "gemma4_text": frozenset({"k head", "v head"}),  # keys rotate alone; values pass a norm
    "gemma4_text_equal": frozenset({"k head", "v head"}),
    "gemma4_text_experts": frozenset({"k head", "v head"}),
    "gemma3n_text": frozenset({"k head", "v head"}),
}
"""What the nnsight surgeon refuses, by hand."""


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("model", sampled(EVERYDAY, RandomModel("gpt_neox"), RandomModel("gemma3n_text")), ids=str)
def test_two_surgeons_agree_or_nnsight_refuses(model: RandomModel, cell: Cell) -> None:
    batch = make_batch(model.family, cell, is_windowed=False, has_reused=False)
    surgeon, recording = make_surgeon(model)
    nnsight_surgeon = make_nnsight_surgeon(model)
    own = nnsight_surgeon.record(model.prompts, keep={"z"} if cell.attention == "frozen" else ())

    def run() -> list[Tensor]:
        return nnsight_surgeon.run(own, batch.edits, batch.reads, source=batch.source, attention=cell.attention)

    if str(cell) in REFUSED[model.family]:
        with pytest.raises((SurgeryError, RuntimeError), match=r"Edit|nnsight"):
            run()
        return
    expected = surgeon.run(recording, batch.edits, batch.reads, source=batch.source, attention=cell.attention)
    assert error_of_rows(run(), expected).max() <= tolerance(model)


@pytest.mark.parametrize("scope", ["group", "head"])
@pytest.mark.parametrize("site", ["k", "v"])
@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_nnsight_refuses_to_edit_what_a_layer_reuses(family: Family, site: Site, scope: Scope) -> None:
    nnsight_surgeon = make_nnsight_surgeon(RandomModel(family))
    recording = nnsight_surgeon.record(RandomModel(family).prompts)
    edit = Edit(site, torch.ones(10), at=[6], head=[(4, 0)], scope=scope)
    with pytest.raises(SurgeryError, match="reuses those of layer 2"):
        nnsight_surgeon.run(recording, [edit], [Read("logits", at=[LENGTH - 1])])
