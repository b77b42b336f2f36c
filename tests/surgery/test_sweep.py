"""Several variants in one batch, and logits of a few tokens in place of the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rebinding.surgery import ActiveHeads, Edit, LogitsOf, NothingEdited, Read, TorchSurgeon, derive
from tests.close import MIN_CHANGE_SHARE, agree, allowance, is_changed
from tests.families.models import VOCABULARY, Family, tiny, tokens
from tests.surgery.small_edits import make_surgeon

N, LAYER, AT = 3, 1, 4
HEADS = ((2, 4), (1, 0), (0, 3), (2, 1))
DICE = torch.Generator().manual_seed(3)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DICE)


@pytest.fixture(scope="module")
def surgeon() -> TorchSurgeon:
    return make_surgeon("llama")


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


class Wrapped(nn.Linear):
    """A head that is no plain matrix: its numbers come of a call and of nothing else."""

    def forward(self, entry: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(entry)


@pytest.mark.parametrize("kind", ["plain", "with a bias", "wrapped"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_of_a_few_tokens_are_those_of_the_vocabulary(family: Family, kind: str) -> None:
    model, dice = tiny(family), torch.Generator().manual_seed(0)
    anatomy = derive(model)
    head: Any = model.get_submodule(anatomy.head)
    if kind == "wrapped":
        head.__class__ = Wrapped
    if kind == "with a bias":
        head.bias = nn.Parameter(torch.randn(head.out_features, generator=dice), requires_grad=False)
    resid = torch.randn(4, 2, head.in_features, generator=dice)  # (row, position, hidden)
    few = torch.randint(0, head.out_features, (4, 3), generator=dice)  # (row, token)
    with torch.no_grad():
        full = anatomy.logits(model, resid)  # (row, position, vocabulary)
        small = anatomy.logits(model, resid, few)  # (row, position, token)
    expected = torch.stack([full[row][:, few[row]] for row in range(4)])
    close = allowance(expected, floor=1.0)
    assert float((small - expected).abs().max()) <= close
    assert float((expected[..., 0] - expected[..., 1]).abs().max()) > MIN_CHANGE_SHARE * close


@pytest.mark.parametrize("attention", ["live", "frozen"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_run_reads_a_few_tokens(family: Family, attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logits are those of a run that reads all; the whole vocabulary is computed only where it is read."""
    surgeon, prompts, dice = make_surgeon(family), tokens(family), torch.Generator().manual_seed(1)
    recording, last = surgeon.record(prompts, keep={"z"}), prompts.shape[1] - 1
    source = torch.arange(5) % len(prompts)
    kept = torch.randint(0, VOCABULARY, (5, 3), generator=dice)  # (row, token), another line for each row
    resid = torch.randn(5, 1, recording.sites["resid"][0].shape[-1], generator=dice)
    edits = [Edit("resid", resid, at=[last], layer=1, mode="add")]
    full, few = Read("logits", at=[last]), Read("logits", at=[last], reduce=LogitsOf(kept))
    sizes: list[Any] = []
    logits = type(surgeon.anatomy).logits

    def note(anatomy: Any, model: Any, resid: Any, tokens: Any = None) -> Any:
        sizes.append(None if tokens is None else tuple(tokens.shape))
        return logits(anatomy, model, resid, tokens)

    monkeypatch.setattr(type(surgeon.anatomy), "logits", note)
    (actual,) = surgeon.run(recording, edits, [few], source=source, attention=attention)
    assert sizes == [(5, 3)]
    (all_logits,) = surgeon.run(recording, edits, [full], source=source, attention=attention)
    (clean,) = surgeon.run(recording, [], [few], source=source)
    expected = torch.stack([all_logits[row][:, kept[row]] for row in range(5)])
    assert agree(actual, expected)
    assert is_changed(actual, clean)
    assert not agree(expected[..., 0], expected[..., 1])


def test_edited_logits_are_read_after_the_edit(surgeon: TorchSurgeon) -> None:
    prompts = tokens("llama")
    recording, last = surgeon.record(prompts), prompts.shape[1] - 1
    kept = torch.tensor([[7, 30]]).expand(len(prompts), -1)
    value = torch.arange(float(VOCABULARY)).expand(len(prompts), 1, -1)
    edits = [Edit("logits", value, at=[last])]
    (actual,) = surgeon.run(recording, edits, [Read("logits", at=[last], reduce=LogitsOf(kept))])
    assert actual.tolist() == [[[7.0, 30.0]]] * len(prompts)


def test_mean_ablated_runs_read_a_few_tokens() -> None:
    surgeon, prompts = make_surgeon("gemma2"), tokens("gemma2")
    recording, last = surgeon.record(prompts, keep={"z"}), prompts.shape[1] - 1
    base = surgeon.record_mean_ablated(prompts, [z.mean(0) for z in recording.sites["z"]])
    active = ActiveHeads(*(torch.tensor(places) for places in ([0, 1], [1, 2], [0, 3], [last, last])))
    source, readout, kept = torch.tensor([0, 1]), torch.tensor([last, last]), torch.tensor([[3, 50], [8, 4]])
    few, full = (
        surgeon.run_mean_ablated(base, active, source=source, readout=readout, reduce=reduce)
        for reduce in (LogitsOf(kept), lambda logits, rows: logits)
    )
    expected = torch.stack([full[row][:, kept[row]] for row in range(2)])
    assert agree(few, expected)
    assert not agree(expected[0], expected[1])
