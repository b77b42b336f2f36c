"""Shards with one set of settings are put together; what is worked out once is known by its piece of evidence."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pandas as pd
import pytest

from rebinding.evidence.evidence import Evidence, EvidenceError, merge, once


def shard(*ids: int, experiment: str = "toy", **settings: Any) -> Evidence:
    return Evidence(experiment, pd.DataFrame({"id": ids}), {"mode": "swap", "n": 2, **settings})


def test_rows_stand_in_the_order_of_the_shards() -> None:
    merged = merge([shard(3, 1), shard(2)])
    assert merged.rows["id"].tolist() == [3, 1, 2]
    assert merged.rows.index.tolist() == [0, 1, 2]
    assert (merged.experiment, merged.settings) == ("toy", {"mode": "swap", "n": 2})


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (shard(2, n=3), ["n"]),
        (shard(2, mode="none", n=3), ["mode", "n"]),
        (shard(2, block=1), ["block"]),
        (shard(2, experiment="other"), ["experiment"]),
        (shard(2, experiment="other", n=3), ["experiment", "n"]),
    ],
)
def test_shards_that_differ_are_refused(other: Evidence, names: list[str]) -> None:
    for shards in ([shard(1), other], [other, shard(1)], [shard(1), shard(4), other]):
        with pytest.raises(EvidenceError) as caught:
            merge(shards)
        assert str(caught.value).endswith(f"they differ in: {', '.join(names)}")


def test_nothing_is_not_merged() -> None:
    with pytest.raises(EvidenceError, match="nothing to merge"):
        merge([])


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
