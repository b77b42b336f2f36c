"""What is worked out once for a piece of evidence, and is not mistaken for another's."""

from __future__ import annotations

import gc
from weakref import ref

import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.evidence.once import once


def evidence(*values: float) -> Evidence:
    return Evidence("made up", pd.DataFrame({"value": values}), {})


def test_each_question_is_worked_out_once_for_each_piece_of_evidence() -> None:
    """Equal tables are two pieces of evidence all the same; words and places of arguments tell questions apart."""
    asked: list[tuple[int, float]] = []

    @once
    def above(one: Evidence, bound: float, by: float = 0.0) -> int:
        asked.append((id(one), bound + by))
        return int((one.rows["value"] > bound + by).sum())

    first, second = evidence(1.0, 2.0), evidence(1.0, 2.0)
    assert [above(first, 0.0), above(first, 1.5), above(first, 0.0), above(first, 0.0, by=1.5)] == [2, 1, 2, 1]
    assert above(second, 0.0) == 2
    assert asked == [(id(first), 0.0), (id(first), 1.5), (id(first), 1.5), (id(second), 0.0)]


def test_an_error_is_not_kept() -> None:
    calls = []

    @once
    def fails(one: Evidence) -> None:
        calls.append(one)
        raise ValueError("no rows")

    made = evidence()
    for _ in range(2):
        with pytest.raises(ValueError, match="no rows"):
            fails(made)
    assert len(calls) == 2


def test_what_was_worked_out_goes_with_its_evidence() -> None:
    @once
    def table(one: Evidence) -> pd.DataFrame:
        return one.rows * 2

    made = evidence(1.0)
    doubled = ref(table(made))
    assert doubled() is not None
    del made
    gc.collect()
    assert doubled() is None
