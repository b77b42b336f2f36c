"""Many variants in one batch are the runs of each variant by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, LogitsOf, NothingEdited, Read, TorchSurgeon, derive
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.surgery.models import tiny, tokens

N, LAYER, AT = 3, 1, 4
HEADS = ((2, 4), (1, 0), (0, 3), (2, 1))
DICE = torch.Generator().manual_seed(3)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DICE)


@pytest.fixture(scope="module")
def surgeon() -> TorchSurgeon:
    model = tiny("llama")
    return TorchSurgeon(model, derive(model))


def variants(surgeon: TorchSurgeon) -> list[list[Edit]]:
    """Of one place and of many, of all prompts and of some, set and then added to and the other way round."""
    hidden, width = surgeon.anatomy.hidden, surgeon.anatomy.parts[0].head_dim
    one, other = (Edit("resid", noise(N, 1, hidden), at=[AT], layer=LAYER) for _ in range(2))
    added = Edit("resid", noise(N, 1, hidden), at=[AT], layer=LAYER, mode="add")
    some = Edit("resid", noise(2, 1, hidden), at=[[AT], [AT + 1]], layer=LAYER, rows=[2, 0])
    heads = [Edit("z", noise(N, len(HEADS), 2, width), at=[AT, AT + 1], head=HEADS)]
    return [[], [one], [one, other], [one, added], [added, one], [some], heads, [some, *heads], [added, other]]


def test_a_variant_of_many_is_the_run_of_its_edits(surgeon: TorchSurgeon) -> None:
    recording = surgeon.record(tokens("llama", n=N))
    candidates = torch.tensor([[1, 2], [3, 4], [5, 6]])  # (prompt, candidate)
    last = recording.length - 1
    reads = [
        Read("logits", at=[last], reduce=LogitsOf(candidates)),
        Read("logits", at=[last], reduce=lambda logits, rows: logits[:, 0, :2] + rows[:, None]),
        Read("resid", at=[[AT], [AT + 1], [AT]], layer=LAYER + 1),
    ]
    every = variants(surgeon)
    together = surgeon.sweep(recording, every, reads, allow_noop=True)
    alone = [surgeon.run(recording, edits, reads, allow_noop=True) for edits in every]
    clean = alone[0][0]
    for values, *expected in zip(together, *alone, strict=True):
        close = allowance(torch.stack(expected).numpy())
        torch.testing.assert_close(values, torch.stack(expected), rtol=0, atol=close)
    shown, close = together[0], allowance(clean.numpy())
    sizes = [(logits - clean).abs().amax() for logits in shown]
    assert sizes[0] <= close
    assert min(sizes[1:]) > MIN_CHANGE_SHARE * close
    assert (shown[3] - shown[4]).abs().amax() > MIN_CHANGE_SHARE * close, "set, added to; and the other way round"
    torch.testing.assert_close(shown[5][1], clean[1], rtol=0, atol=close, msg="no edit names this prompt")


def test_rows_may_continue_any_prompts(surgeon: TorchSurgeon) -> None:
    """Each of four rows is a prompt again, edited in its own way."""
    recording, source = surgeon.record(tokens("llama", n=N)), torch.tensor([2, 0, 2, 1])
    edit = Edit("resid", noise(4, 1, surgeon.anatomy.hidden), at=[AT], layer=LAYER)
    read = Read("logits", at=[-1])
    (values,) = surgeon.sweep(recording, [[edit], []], [read], source=source, allow_noop=True)
    expected = (surgeon.run(recording, edits, [read], source=source, allow_noop=True)[0] for edits in ([edit], []))
    for one, other in zip(values, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=allowance(other.numpy()))


def test_heads_come_in_the_order_in_which_they_are_given(surgeon: TorchSurgeon) -> None:
    recording = surgeon.record(tokens("llama", n=N))
    (together,) = surgeon.run(recording, [], [Read("z", at=[AT], head=HEADS)])
    for place, (layer, head) in enumerate(HEADS):
        (expected,) = surgeon.run(recording, [], [Read("z", at=AT, head=(layer, head))])
        torch.testing.assert_close(together[:, place, 0], expected, rtol=0, atol=allowance(expected.numpy()))


def test_a_variant_that_changes_nothing_is_refused_unless_allowed(surgeon: TorchSurgeon) -> None:
    recording = surgeon.record(tokens("llama", n=N))
    edit = Edit("resid", torch.zeros(N, 1, surgeon.anatomy.hidden), at=[AT], layer=LAYER, mode="add")
    real = Edit("resid", noise(N, 1, surgeon.anatomy.hidden), at=[AT], layer=LAYER)
    with pytest.raises(NothingEdited):
        surgeon.sweep(recording, [[real], [edit]], [Read("logits", at=[-1])])
