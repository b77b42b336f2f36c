"""Edits that cannot be, or would change nothing, are errors with their own messages, whichever surgeon is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rebinding.surgery import (
    Edit,
    NothingEdited,
    Read,
    RecordedRun,
    Surgeon,
    SurgeryError,
    TorchSurgeon,
    derive,
    in_layer,
)
from rebinding.surgery.layers import split_edit
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.surgery.models import tiny, tokens
from tests.surgery.small_edits import edit_at, logits

VALUE = torch.ones(10)
LAST = Read("logits", at=[12])


def edit(site: Any = "z", value: Any = VALUE, **options: Any) -> Edit:
    """An edit of one head at the first token, unless said otherwise."""
    return Edit(site, value, **{"at": [0], "head": [(0, 0)]} | options)


@pytest.fixture(scope="module", params=[TorchSurgeon, NNsightSurgeon])
def recorded(request: pytest.FixtureRequest) -> tuple[Surgeon, RecordedRun]:
    """Each surgeon, with three recorded prompts of thirteen tokens."""
    model = tiny("llama")
    surgeon: Surgeon = request.param(model, derive(model))
    return surgeon, surgeon.record(tokens("llama"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"site": "nowhere"}, "unknown site 'nowhere'"),
        ({"site": "answers"}, "unknown site 'answers'"),
        ({"site": "resid"}, "has no heads"),
        ({"site": "logits"}, "leave head and layer out"),
        ({"head": None}, "per head"),
        ({"layer": 0}, "per head.* and no layer"),
        ({"site": "k"}, "with scope None: k and v are edited and read with"),
        ({"site": "k", "scope": "both"}, "unknown scope 'both'; write scope='group' or scope='head'"),
        ({"site": "v", "scope": "Head"}, "unknown scope 'Head'"),
        ({"scope": "head"}, "no other site takes a scope"),
        ({"mode": "sett"}, "unknown mode 'sett'; write mode='set' or mode='add'"),
        ({"site": "resid", "head": None, "layer": 4.5}, r"layer must be an integer; got 4\.5"),
        ({"site": "resid", "head": None, "layer": 1.0}, "layer must be an integer"),
        ({"site": "resid", "head": None, "layer": True}, "layer must be an integer; got True"),
        ({"site": "resid", "head": None, "layer": "1"}, "layer must be an integer; got '1'"),
        ({"value": "0.5"}, "value must be a number or a tensor.*got a str"),
        ({"at": [0, 0]}, "positions name the same index twice"),
        ({"at": [0, -13]}, "positions name the same index twice"),
        ({"at": [-14]}, "positions are counted from 0; got -1"),
        ({"at": torch.tensor([-1])}, "positions are counted from 0; got -1"),
        ({"at": "readout"}, "only prompts know names"),
        ({"head": (0, -1)}, r"there is no head \(0, -1\)"),
        ({"head": [(0, 1), (0, 1)]}, "heads name the same index twice"),
        ({"head": torch.tensor([[[0, 1]], [[1, 1]], [[0, 1]]])}, "heads of several layers"),
        ({"at": torch.zeros(1, 1, 1, dtype=torch.long)}, r"positions must be one index.*shape \(1, 1, 1\)"),
        ({"head": [[[0]]]}, r"head must be \(layer, head\)"),
        ({"at": []}, "positions must be one index"),
        ({"rows": [1, 1]}, "lists a row twice"),
        ({"rows": [-1]}, "rows are counted from 0.* row -1"),
        ({"rows": [-1, 2]}, "rows are counted from 0.* row -1"),
        ({"where": torch.ones(1)}, r"mask .* must be a boolean tensor; got a tensor of torch\.float32"),
        ({"where": [True]}, r"mask .* must be a boolean tensor; got \[True\]"),
    ],
)
def test_edits_that_cannot_be_are_refused(
    recorded: tuple[Surgeon, RecordedRun], arguments: dict[str, Any], message: str
) -> None:
    """Each with its own message."""
    surgeon, recording = recorded
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [edit(**arguments)], [LAST])


NO_INTEGERS = [
    1.7,
    [1.7],
    [0, 1.0],
    True,
    [True],
    [False, 1],
    torch.tensor([1.0]),
    torch.tensor([True]),
    np.array([1.7]),
]


@pytest.mark.parametrize("argument", ["at", "rows"])
@pytest.mark.parametrize("index", NO_INTEGERS, ids=repr)
def test_indices_are_integers(argument: str, index: Any) -> None:
    """A float is not cut to an integer, and a flag is no index."""
    with pytest.raises(SurgeryError, match=r"must be integers.*; got"):
        edit(**{argument: index})


@pytest.mark.parametrize(
    "head", [(0, 1.7), (0, True), [(0, 1), (0.0, 1)], [(0, "1")], torch.tensor([[0.0, 1.0]])], ids=repr
)
def test_heads_are_pairs_of_integers(head: Any) -> None:
    with pytest.raises(SurgeryError, match=r"head must be \(layer, head\).*; got"):
        edit(head=head)


def test_lines_of_unequal_length_are_no_table() -> None:
    with pytest.raises(SurgeryError, match=r"lines of one length.*\[\[1\], \[2, 3\]\]"):
        edit(at=[[1], [2, 3]])


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
    (result,) = split_edit(derive(tiny("llama")), edit(at=index, head=in_layer(np.int64(2), index), rows=index), 13)
    assert result.rows is not None
    assert result.heads is not None
    assert [result.positions.tolist(), result.heads.tolist(), result.rows.tolist()] == [[[2]], [[2]], [2]]
    assert {table.dtype for table in (result.positions, result.heads, result.rows)} == {torch.int64}
    assert type(result.layer) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": (9, 0)}, r"no head \(9, 0\): the model has layers 0 to 3"),
        ({"head": (-1, 0)}, r"no head \(-1, 0\)"),
        ({"at": [99]}, "position 99"),
        ({"head": [(0, 6)]}, "z counts query heads"),
        ({"site": "k", "head": [(0, 2)], "scope": "group"}, "k counts KV heads"),
        ({"site": "k", "head": [(0, 6)], "scope": "head"}, "k counts query heads"),
        ({"value": torch.zeros(7)}, "value .* must broadcast"),
        (
            {"where": torch.ones(5, dtype=torch.bool)},
            r"mask .* has shape \(1, 1, 5\); it must broadcast to \(3, 1, 1\)",
        ),
        ({"rows": [5]}, "row 5"),
        ({"head": in_layer(0, [[0], [1]])}, "heads has 2 lines for 3 rows"),
        ({"at": [[0], [1]]}, "positions has 2 lines for 3 rows"),
    ],
)
def test_edits_that_do_not_fit_a_call_are_refused(
    recorded: tuple[Surgeon, RecordedRun], arguments: dict[str, Any], message: str
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
        surgeon.run(recording, [edit_at(surgeon, "z", 3, 5, length)], [Read("resid", at=[8], layer=3)])
    with pytest.raises(NothingEdited):
        logits(surgeon, recording, [Edit("z", torch.zeros(10), at=[4], head=[(1, 0)], mode="add")], [12])
    with pytest.raises(SurgeryError, match="frozen"):
        logits(surgeon, recording, [edit_at(surgeon, "q", 1, 8, length)], [8], attention="frozen")
