"""Edits that cannot be, or would change nothing, are errors with their own messages, whichever surgeon is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rebinding.surgery import Edit, NothingEdited, Read, Recording, Surgeon, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.surgery.models import tiny, tokens
from tests.surgery.small_edits import edit_at, logits

VALUE = torch.ones(10)
LAST = Read("logits", positions=[12])


def edit(site: Any = "z", layer: Any = 0, value: Any = VALUE, **options: Any) -> Edit:
    """An edit of one head at the first token, unless said otherwise."""
    return Edit(site, layer, value, **{"positions": [0], "heads": [0]} | options)


@pytest.fixture(scope="module", params=[TorchSurgeon, NNsightSurgeon])
def recorded(request: pytest.FixtureRequest) -> tuple[Surgeon, Recording]:
    """Each surgeon, with three recorded prompts of thirteen tokens."""
    model = tiny("llama")
    surgeon: Surgeon = request.param(model, derive(model))
    return surgeon, surgeon.record(tokens("llama"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"site": "nowhere"}, "unknown site 'nowhere'"),
        ({"site": "resid"}, "has no heads"),
        ({"heads": None}, "per head"),
        ({"site": "k"}, "with scope None: an edit of k or v says"),
        ({"site": "k", "scope": "both"}, "unknown scope 'both'; write scope='group' or scope='head'"),
        ({"site": "v", "scope": "Head"}, "unknown scope 'Head'"),
        ({"scope": "head"}, "no other site takes a scope"),
        ({"mode": "sett"}, "unknown mode 'sett'; write mode='set' or mode='add'"),
        ({"layer": 4.5}, r"layer must be an integer; got 4\.5"),
        ({"layer": 1.0}, "layer must be an integer"),
        ({"layer": True}, "layer must be an integer; got True"),
        ({"layer": "1"}, "layer must be an integer; got '1'"),
        ({"value": 0.5}, "value of an edit at z, layer 0 must be a tensor; got 0.5"),
        ({"positions": [0, 0]}, "positions name the same index twice"),
        ({"positions": [-1]}, "positions are counted from 0; got -1"),
        ({"heads": [-1]}, "heads are counted from 0; got -1"),
        ({"positions": torch.zeros(1, 1, 1, dtype=torch.long)}, r"positions must be one index.*shape \(1, 1, 1\)"),
        ({"heads": [[[0]]]}, "heads must be one index"),
        ({"positions": []}, "positions must be one index"),
        ({"rows": [1, 1]}, "lists a row twice"),
        ({"rows": [-1]}, "rows are counted from 0.* row -1"),
        ({"rows": [-1, 2]}, "rows are counted from 0.* row -1"),
        ({"where": torch.ones(1)}, r"mask .* must be a boolean tensor; got a tensor of torch\.float32"),
        ({"where": [True]}, r"mask .* must be a boolean tensor; got \[True\]"),
    ],
)
def test_edits_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Before a surgeon sees them, each with its own message."""
    with pytest.raises(SurgeryError, match=message):
        edit(**arguments)


@pytest.mark.parametrize("argument", ["positions", "heads", "rows"])
@pytest.mark.parametrize(
    "index",
    [1.7, [1.7], [0, 1.0], True, [True], [False, 1], torch.tensor([1.0]), torch.tensor([True]), np.array([1.7]), ["1"]],
    ids=repr,
)
def test_indices_are_integers(argument: str, index: Any) -> None:
    """A float is not cut to an integer, and a flag is no index."""
    with pytest.raises(SurgeryError, match=f"{argument} must be integers.*; got"):
        edit(**{argument: index})


def test_lines_of_unequal_length_are_no_table() -> None:
    with pytest.raises(SurgeryError, match=r"lines of one length.*\[\[1\], \[2, 3\]\]"):
        edit(positions=[[1], [2, 3]])


@pytest.mark.parametrize(
    "index",
    [
        2,
        (2,),
        range(2, 3),
        np.int64(2),
        [np.int32(2)],
        np.array([2], dtype=np.uint8),
        torch.tensor(2),
        torch.tensor([2], dtype=torch.uint8),
        torch.tensor([2], dtype=torch.int32),
    ],
    ids=repr,
)
def test_integers_of_every_kind_are_indices(index: Any) -> None:
    """They name the same place, also where torch would read bytes as a mask."""
    result = edit(positions=index, heads=index, rows=index, layer=np.int64(2))
    assert result.rows is not None
    assert result.heads is not None
    assert [result.positions.tolist(), result.heads.tolist(), result.rows.tolist()] == [[[2]], [[2]], [2]]
    assert {table.dtype for table in (result.positions, result.heads, result.rows)} == {torch.int64}
    assert type(result.layer) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 9}, "layers 0..3; got layer 9"),
        ({"layer": -1}, "layers 0..3; got layer -1"),
        ({"positions": [99]}, "position 99"),
        ({"heads": [6]}, "query heads"),
        ({"site": "k", "heads": [2], "scope": "group"}, "KV heads"),
        ({"site": "k", "heads": [6], "scope": "head"}, "query heads"),
        ({"value": torch.zeros(7)}, "value .* must broadcast"),
        ({"where": torch.ones(5, dtype=torch.bool)}, r"mask .* has shape \(5,\); it must broadcast to \(3, 1, 1\)"),
        ({"rows": [5]}, "row 5"),
        ({"heads": [[0], [1]]}, "heads has 2 lines for 3 rows"),
        ({"positions": [[0], [1]]}, "positions has 2 lines for 3 rows"),
    ],
)
def test_edits_that_do_not_fit_a_call_are_refused(
    recorded: tuple[Surgeon, Recording], arguments: dict[str, Any], message: str
) -> None:
    """By both surgeons, each with its own message."""
    surgeon, recording = recorded
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [edit(**arguments)], [LAST])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rows": []}, "lists no rows"), ({"where": torch.zeros(1, dtype=torch.bool)}, "masked out everywhere")],
)
def test_edits_of_no_place_change_nothing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NothingEdited, match=message):
        edit(**arguments)


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
