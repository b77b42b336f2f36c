"""Prompts, reads and options that cannot be are refused by both surgeons alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.surgery import ActiveHeads, Edit, Read, RecordedRun, Surgeon, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.close import agree, is_changed
from tests.surgery.models import VOCABULARY, tiny, tokens

LAST = Read("logits", at=[12])
ADD_EDIT = Edit("z", torch.ones(10), at=[4], head=[(1, 0)], mode="add")


@pytest.fixture(scope="module", params=[TorchSurgeon, NNsightSurgeon])
def surgeon(request: pytest.FixtureRequest) -> Surgeon:
    """Each of the two."""
    model = tiny("llama")
    surgeon: Surgeon = request.param(model, derive(model))
    return surgeon


@pytest.fixture(scope="module")
def recording(surgeon: Surgeon) -> RecordedRun:
    """Three prompts of thirteen tokens."""
    return surgeon.record(tokens("llama"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Read("nowhere", at=[0], layer=0), "unknown site 'nowhere'"),
        (lambda: Read("resid", at=[0], head=[(0, 0)]), "has no heads"),
        (lambda: Read("z", at=[0], layer=0), "per head"),
        (lambda: Read("resid", at=[-14], layer=0), "positions are counted from 0"),
        (lambda: Read("resid", at=[1.7], layer=0), "positions must be integers"),
        (lambda: Read("z", at=[0], head=[(0, True)]), "head must be"),
        (lambda: Read("resid", at=[0], layer=1.0), "layer must be an integer"),
        (lambda: Read("z", at=[0], head=[(4, 0)]), r"no head \(4, 0\): the model has layers 0 to 3"),
        (lambda: Read("resid", at=[0], layer=5), "no layer 5: 'resid' has layers 0 to 4"),
        (lambda: Read("resid", at=[0]), "give layer="),
        (lambda: Read("logits", at=[13]), "position 13 in prompts of 13 tokens"),
        (lambda: Read("z", at=[0], head=[(0, 6)]), r"no head \(0, 6\): .* query heads 0 to 5"),
        (lambda: Read("v", at=[0], head=[(0, 2)], scope="group"), r"no head \(0, 2\): .* KV heads 0 to 1"),
        (lambda: Read("k", at=[0], head=(0, 0)), "with scope None"),
        (lambda: Read("answers"), "read them with a rebinding.Recording"),
        (lambda: Read("logits"), "only prompts know names"),
        (lambda: Read("logits", at=[[0], [1]]), "positions has 2 lines for 3 rows"),
    ],
)
def test_reads_that_cannot_be_are_refused(
    surgeon: Surgeon, recording: RecordedRun, make: Callable[[], Read], message: str
) -> None:
    """Like edits, each with its own message; also beside a read that can be."""
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [], [LAST, make()])


def test_a_run_reads_something(surgeon: Surgeon, recording: RecordedRun) -> None:
    with pytest.raises(SurgeryError, match="nothing is read: list at least one Read"):
        surgeon.run(recording, [ADD_EDIT], [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.tensor([9]), "source names prompt 9; the recording has prompts 0..2"),
        (torch.tensor([0, -1]), "source names prompt -1"),
        (torch.tensor([3]), "source names prompt 3"),
        (torch.tensor([], dtype=torch.long), r"1-d integer tensor.*of shape \(0,\)"),
        (torch.tensor([0.0, 1.0]), r"1-d integer tensor.*got torch\.float32"),
        (torch.tensor([True, False]), r"1-d integer tensor.*got torch\.bool"),
        (torch.tensor([[0, 1]]), r"1-d integer tensor.*of shape \(1, 2\)"),
        (torch.tensor(0), r"1-d integer tensor.*of shape \(\)"),
        ([0, 1], r"1-d integer tensor.*got a list\. Use torch\.tensor"),
    ],
    ids=str,
)
def test_source_names_a_recorded_prompt_for_each_row(
    surgeon: Surgeon, recording: RecordedRun, source: Any, message: str
) -> None:
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [], [LAST], source=source)


def test_source_of_bytes_is_no_mask(surgeon: Surgeon, recording: RecordedRun) -> None:
    """Torch reads an index of bytes as a mask; here they are numbers of prompts."""
    (expected,) = surgeon.run(recording, [ADD_EDIT], [LAST], source=torch.tensor([1, 0]))
    (actual,) = surgeon.run(recording, [ADD_EDIT], [LAST], source=torch.tensor([1, 0], dtype=torch.uint8))
    assert agree(actual, expected)
    assert is_changed(expected[0], expected[1])


def test_attention_is_live_or_frozen(surgeon: Surgeon) -> None:
    recording = surgeon.record(tokens("llama"), keep={"z"})
    with pytest.raises(SurgeryError, match="unknown attention 'frozn'; write attention='live' or attention='frozen'"):
        surgeon.run(recording, [ADD_EDIT], [LAST], attention="frozn")


def test_frozen_attention_needs_recorded_heads(surgeon: Surgeon, recording: RecordedRun) -> None:
    """The message says how to record them, and then the run goes through."""
    read = Read("logits", at=[4])
    with pytest.raises(SurgeryError, match=r"record\(tokens, keep=\{'z'\}\)"):
        surgeon.run(recording, [ADD_EDIT], [read], attention="frozen")
    smaller_recording = surgeon.record(tokens("llama"), keep={"z"})
    (edited,) = surgeon.run(smaller_recording, [ADD_EDIT], [read], attention="frozen")
    (clean,) = surgeon.run(smaller_recording, [], [read], attention="frozen")
    assert is_changed(edited, clean)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (torch.zeros(3, 1, dtype=torch.long), r"tokens must be \(prompt, token\).*got shape \(3, 1\)"),
        (torch.zeros(5, dtype=torch.long), r"tokens must be \(prompt, token\).*got shape \(5,\)"),
        (torch.zeros(0, 5, dtype=torch.long), r"at least one prompt.*got shape \(0, 5\)"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"tokens must be \(prompt, token\)"),
        (torch.zeros(2, 5), r"tokens must be integers.*got torch\.float32"),
        (torch.zeros(2, 5, dtype=torch.bool), r"tokens must be integers.*got torch\.bool"),
        (torch.full((2, 5), VOCABULARY), f"vocabulary of the model, 0..{VOCABULARY - 1}; got token {VOCABULARY}"),
        (torch.tensor([[3, 4, -1]]), "vocabulary of the model.*got token -1"),
    ],
)
def test_prompts_that_a_model_cannot_run_are_refused(surgeon: Surgeon, prompts: Tensor, message: str) -> None:
    """When they are recorded, and not when something is read."""
    with pytest.raises(SurgeryError, match=message):
        surgeon.record(prompts)


def test_every_token_of_the_vocabulary_is_recorded(surgeon: Surgeon) -> None:
    """The first and the last are none too many, and integers of half the size will do."""
    edges = torch.tensor([[0, VOCABULARY - 1, 3]])
    (expected,) = surgeon.run(surgeon.record(edges), [], [Read("logits", at=[2])])
    (actual,) = surgeon.run(surgeon.record(edges.int()), [], [Read("logits", at=[2])])
    assert agree(actual, expected)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"nowhere"}, "keep names the unknown site 'nowhere'; the sites are resid, q, k,"),
        (("z", "keys"), "keep names the unknown site 'keys'"),
        ({"logits"}, "logits are not kept for every token"),
        ("mlp_out", r"keep must be a set of sites; got the word 'mlp_out'\. Write keep=\{'mlp_out'\}"),
    ],
    ids=str,
)
def test_only_sites_of_every_token_are_kept(surgeon: Surgeon, keep: Any, message: str) -> None:
    with pytest.raises(SurgeryError, match=message):
        surgeon.record(tokens("llama"), keep=keep)


@pytest.mark.parametrize("short", range(4))
def test_active_places_have_equal_lengths(short: int) -> None:
    lists = [torch.zeros(1 if number == short else 2, dtype=torch.long) for number in range(4)]
    with pytest.raises(SurgeryError, match=r"differ in length: \[1, 2\]"):
        ActiveHeads(*lists)
