"""Edits that cannot be, or would change nothing, are errors with their own messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.surgery import Edit, NothingEdited, Read, SurgeryError
from tests.surgery.edited import edit_at, logits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Edit("nowhere", 0, torch.zeros(1), positions=[0]), "unknown site"),
        (lambda: Edit("resid", 0, torch.zeros(1), positions=[0], heads=[0]), "has no heads"),
        (lambda: Edit("z", 0, torch.zeros(1), positions=[0]), "per head"),
        (lambda: Edit("k", 0, torch.zeros(1), positions=[0], heads=[0]), "scope"),
        (lambda: Edit("z", 0, torch.zeros(1), positions=[0, 0], heads=[0]), "twice"),
        (lambda: Edit("z", 0, torch.zeros(1), positions=[-1], heads=[0]), "counted from 0"),
        (lambda: Edit("z", 9, torch.zeros(1), positions=[0], heads=[0]), "layers 0..3"),
        (lambda: Edit("z", 0, torch.zeros(1), positions=[99], heads=[0]), "position 99"),
        (lambda: Edit("z", 0, torch.zeros(1), positions=[0], heads=[6]), "query heads"),
        (lambda: Edit("k", 0, torch.zeros(1), positions=[0], heads=[2], scope="group"), "KV heads"),
        (lambda: Edit("z", 0, torch.zeros(7), positions=[0], heads=[0]), "must broadcast"),
        (lambda: Edit("z", 0, torch.ones(10), positions=[0], heads=[0], rows=[5]), "row 5"),
        (lambda: Edit("z", 0, torch.zeros(10), positions=[0], heads=[0], rows=[]), "no rows"),
    ],
)
def test_impossible_edits_are_refused(case: Any, make: Any, message: str) -> None:
    """Each with its own message."""
    surgeon, _, recording = case
    with pytest.raises(SurgeryError, match=message):
        logits(surgeon, recording, [make()], [12])


def test_edits_that_reach_no_read_are_refused(case: Any) -> None:
    """An edit above or after everything that is read changes nothing: an error, not a quiet clean run."""
    surgeon, prompts, recording = case
    length = prompts.shape[1]
    with pytest.raises(NothingEdited):
        logits(surgeon, recording, [edit_at(surgeon, "z", 1, 8, length)], [5])
    with pytest.raises(NothingEdited):
        surgeon.run(recording, [edit_at(surgeon, "z", 3, 5, length)], [Read("resid", 3, positions=[8])])
    with pytest.raises(NothingEdited):
        logits(surgeon, recording, [Edit("z", 1, torch.zeros(10), positions=[4], heads=[0], mode="add")], [12])
    with pytest.raises(SurgeryError, match="frozen"):
        logits(surgeon, recording, [edit_at(surgeon, "q", 1, 8, length)], [8], attention="frozen")
