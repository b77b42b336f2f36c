"""The logits of a few tokens are those of the whole vocabulary, however the head is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rebinding.surgery import ActiveHeads, Edit, LogitsOf, Read, TorchSurgeon, derive
from tests.close import MIN_CHANGE_SHARE, agree, allowance, is_changed
from tests.surgery.models import FAMILIES, VOCABULARY, Family, tiny
from tests.surgery.models import tokens as prompts_of


class Wrapped(nn.Linear):
    """A head that is no plain matrix: its numbers come of a call and of nothing else."""

    def forward(self, entry: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(entry)


@pytest.mark.parametrize("kind", ["plain", "with a bias", "wrapped"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_tokens(family: Family, kind: str) -> None:
    model, dice = tiny(family), torch.Generator().manual_seed(0)
    anatomy = derive(model)
    head: Any = model.get_submodule(anatomy.head)
    if kind == "wrapped":
        head.__class__ = Wrapped
    if kind == "with a bias":
        head.bias = nn.Parameter(torch.randn(head.out_features, generator=dice), requires_grad=False)
    resid = torch.randn(4, 2, head.in_features, generator=dice)  # (row, position, hidden)
    tokens = torch.randint(0, head.out_features, (4, 3), generator=dice)  # (row, token)
    with torch.no_grad():
        full = anatomy.logits(model, resid)  # (row, position, vocabulary)
        small = anatomy.logits(model, resid, tokens)  # (row, position, token)
    expected = torch.stack([full[row][:, tokens[row]] for row in range(4)])
    close = allowance(expected, floor=1.0)
    assert float((small - expected).abs().max()) <= close
    assert float((expected[..., 0] - expected[..., 1]).abs().max()) > MIN_CHANGE_SHARE * close


@pytest.mark.parametrize("attention", ["live", "frozen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_reads_a_few_tokens(family: Family, attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logits are those of a run that reads all; the whole vocabulary is computed only where it is read."""
    model, prompts, dice = tiny(family), prompts_of(family), torch.Generator().manual_seed(1)
    surgeon = TorchSurgeon(model, derive(model))
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


def test_edited_logits_are_read_after_the_edit() -> None:
    model, prompts = tiny("llama"), prompts_of("llama")
    surgeon = TorchSurgeon(model, derive(model))
    recording, last = surgeon.record(prompts), prompts.shape[1] - 1
    kept = torch.tensor([[7, 30]]).expand(len(prompts), -1)
    value = torch.arange(float(VOCABULARY)).expand(len(prompts), 1, -1)
    edits = [Edit("logits", value, at=[last])]
    (actual,) = surgeon.run(recording, edits, [Read("logits", at=[last], reduce=LogitsOf(kept))])
    assert actual.tolist() == [[[7.0, 30.0]]] * len(prompts)


def test_mean_ablated_runs_read_a_few_tokens() -> None:
    model, prompts = tiny("gemma2"), prompts_of("gemma2")
    surgeon = TorchSurgeon(model, derive(model))
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
