"""z after a change of one query, key or value: the closed form equals a replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.surgery import Edit, Read, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.receivers import receiver_head
from tests.close import agree, is_changed
from tests.surgery.models import FAMILIES, Family, tiny, tokens

AT = torch.tensor([9, 11, 12])
SOURCE = torch.tensor([0, 1, 2, 2, 0])
TOKEN = torch.tensor([8, 10, 12, 3, 2])
"""Tokens before the head's own, one that is it, and two that sliding windows hide."""


@pytest.mark.parametrize("component", ["q", "k", "v"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_a_replay(family: Family, component: Any) -> None:
    """Heads of every layer, windows and caps included; each row is another prompt and token."""
    model = tiny(family)
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens(family), keep={"z"})
    dice = torch.Generator().manual_seed(1)
    for layer, head in ((0, 4), (1, 0), (2, 5), (3, 3)):
        token = AT[SOURCE] if component == "q" else TOKEN
        raw = 2 * torch.randn(len(SOURCE), surgeon.anatomy.parts[0].head_dim, generator=dice)  # (row, head_dim)
        actual = receiver_head(surgeon, recording, layer, head, AT).changed_z(component, raw, SOURCE, token)
        scope = None if component == "q" else "head"
        edit = Edit(component, raw[:, None, None], at=token[:, None], head=[(layer, head)], scope=scope)
        read = Read("z", at=AT[SOURCE][:, None], head=[(layer, head)])
        expected = surgeon.run(recording, [edit], [read], source=SOURCE, allow_noop=True)[0][:, 0, 0]
        assert agree(actual, expected)
        assert is_changed(expected, recording.sites["z"][layer][SOURCE, head, AT[SOURCE]])


def test_a_recorded_z_that_does_not_follow_is_refused() -> None:
    """A head whose z does not follow from its queries, keys and values (here: tampered with) is refused."""
    model = tiny("llama")
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens("llama"), keep={"z"})
    recording.sites["z"][1] = recording.sites["z"][1] * 1.01
    with pytest.raises(SurgeryError, match="differs from the recorded one"):
        receiver_head(surgeon, recording, 1, 2, AT)
