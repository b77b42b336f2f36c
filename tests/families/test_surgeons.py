"""Two surgeons give the same where nnsight finds the sites, and both refuse a site that a layer lacks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from rebinding.models.reference import CELLS, Cell
from rebinding.surgery import Edit, NothingEdited, Read, SurgeryError
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import HEADLESS, SITES, Scope, Site
from tests.everyday import chosen
from tests.families.engines import error_of_rows, make_batch, make_surgeon, tolerance
from tests.families.models import EVERYDAY, LENGTH, USUAL, Family, RandomModel
from tests.families.tables import TABLES
from tests.surgery.small_edits import place


@cache
def make_nnsight_surgeon(model: RandomModel) -> NNsightSurgeon:
    surgeon, _ = make_surgeon(model)
    return NNsightSurgeon(model.build(), surgeon.anatomy)


WITHOUT_COPIES = frozenset({"k head", "v head", "k_rot", "v_seen"})
"""Copies of single query heads in families whose attention function repeats no keys and values."""
FROZEN = frozenset(str(cell) for cell in CELLS if cell.attention == "frozen")
REFUSED: dict[Family, frozenset[str]] = {
    **dict.fromkeys(USUAL, frozenset[str]()),
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


EVERY_SITE = ("gemma3", "gpt_neox")
SOME_SITES: dict[Family, tuple[str, ...]] = dict.fromkeys(USUAL, ("k head", "scores"))
SOME_SITES["gpt2"] = ("q", "k group", "v group")
SOME_SITES["gemma3n_text"] = ("resid", "k group", "mlp_out frozen")
"""The names of sites come from each family's source; GPT-2 has queries, keys and values in one projection."""


def is_everyday(model: RandomModel, cell: Cell) -> bool:
    return model.family in EVERY_SITE or str(cell) in SOME_SITES.get(model.family, ())


CASES = [(model, cell) for model, cell in product(EVERYDAY, CELLS) if TABLES[model.family].layers_with(cell.site)]


@pytest.mark.parametrize(("model", "cell"), chosen(CASES, is_everyday), ids=str)
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


WITH_HEADS = [site for site in SITES if site not in HEADLESS]
LAST = Read("logits", at=[LENGTH - 1])


@pytest.mark.parametrize("site", WITH_HEADS)
def test_layers_without_heads_have_no_sites_of_heads(site: Site) -> None:
    """Layer 2 mixes tokens by a state; layers 1 and 4 have heads."""
    surgeon, recording = make_surgeon(RandomModel("qwen3_next"))
    assert {layer for layer, _ in surgeon.anatomy.heads} == {1, 4}
    nnsight_surgeon = NNsightSurgeon(surgeon.model, surgeon.anatomy)
    width = LENGTH if site in ("scores", "pattern") else 10
    edit = Edit(site, torch.ones(width), at=[6], **place(site, 2, [0]))
    read = Read(site, at=[6], **place(site, 2, [0]))
    for any_surgeon, prompts in ((surgeon, recording), (nnsight_surgeon, nnsight_surgeon.record(recording.tokens))):
        with pytest.raises(SurgeryError, match="layer 2 has no attention heads"):
            any_surgeon.run(prompts, [edit], [LAST])
        with pytest.raises(SurgeryError, match="layer 2 has no attention heads"):
            any_surgeon.run(prompts, [], [read])


def test_heads_are_counted_by_layer() -> None:
    """Gemma 4 has two KV heads where the window slides and three elsewhere, with 10 and 14 numbers each."""
    surgeon, recording = make_surgeon(RandomModel("gemma4_text_equal"))
    with pytest.raises(SurgeryError, match=r"no head \(0, 2\)"):
        surgeon.run(recording, [], [Read("k", at=[6], head=[(0, 2)], scope="group")])
    assert surgeon.run(recording, [], [Read("k", at=[6], head=[(1, 2)], scope="group")])[0].shape == (3, 1, 1, 14)
    edit = Edit("z", torch.ones(14), at=[6], head=[(0, 0)])
    with pytest.raises(SurgeryError, match=r"must broadcast to \(3, 1, 1, 10\)"):
        surgeon.run(recording, [edit], [LAST])


def test_heads_of_several_widths_are_read_and_written_together() -> None:
    """Narrow heads end in zeros, which are no part of a head: what was read is written back, and more is refused."""
    surgeon, recording = make_surgeon(RandomModel("gemma4_text_equal"))
    widths = [parts.head_dim for parts in surgeon.anatomy.parts]
    narrow, wide = widths.index(10), widths.index(14)
    (together,) = surgeon.run(recording, [], [Read("z", at=6, head=[(wide, 0), (narrow, 1)])])  # (prompt, head, width)
    for column, layer in enumerate((wide, narrow)):
        (alone,) = surgeon.run(recording, [], [Read("z", at=6, head=(layer, column))])
        assert torch.equal(together[:, column, : widths[layer]], alone)
    assert not together[:, 1, 10:].any()
    edit = Edit("z", together, at=6, head=[(wide, 0), (narrow, 1)])
    with pytest.raises(NothingEdited):
        surgeon.run(recording, [edit], [LAST])
    with pytest.raises(SurgeryError, match=r"shape \(\d, 1, 1, 14\); it must broadcast to \(\d, 1, 1, 10\)"):
        surgeon.run(recording, [replace(edit, value=together + 1)], [LAST])
