"""A site that a layer lacks is refused, by both surgeons."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rebinding.surgery import Edit, NothingEdited, Read, SurgeryError
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import HEADLESS, SITES, Site
from tests.families.engines import make_surgeon
from tests.families.models import LENGTH, Family, RandomModel
from tests.surgery.small_edits import place

WITH_HEADS = [site for site in SITES if site not in HEADLESS]
LAST = Read("logits", at=[LENGTH - 1])


@pytest.mark.parametrize("site", WITH_HEADS)
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text"])
def test_layers_without_heads_have_no_sites_of_heads(family: Family, site: Site) -> None:
    """Layer 2 mixes tokens by a state; layers 1 and 4 have heads."""
    surgeon, recording = make_surgeon(RandomModel(family))
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
