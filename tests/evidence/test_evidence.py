"""Merging of shards with equal settings, and the cache of functions of evidence."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pandas as pd
import pytest

from rebinding.evidence.evidence import Evidence, EvidenceError, cache_by_evidence, merge


def shard(*ids: int, experiment: str = "toy", **settings: Any) -> Evidence:
    return Evidence(experiment, pd.DataFrame({"id": ids}), {"mode": "swap", "n": 2, **settings})


def test_rows_have_the_order_of_the_shards() -> None:
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
        with pytest.raises(EvidenceError) as excinfo:
            merge(shards)
        assert str(excinfo.value).endswith(f"they differ in: {', '.join(names)}")


def test_merging_no_shards_is_refused() -> None:
    with pytest.raises(EvidenceError, match="nothing to merge"):
        merge([])


def evidence(*values: float) -> Evidence:
    return Evidence("made up", pd.DataFrame({"value": values}), {})


def test_a_function_runs_once_per_evidence_and_arguments() -> None:
    """Equal tables are different evidence; positional and keyword arguments are distinguished."""
    calls: list[tuple[int, float]] = []

    @cache_by_evidence
    def count_above(evidence: Evidence, bound: float, shift: float = 0.0) -> int:
        calls.append((id(evidence), bound + shift))
        return int((evidence.rows["value"] > bound + shift).sum())

    first, second = evidence(1.0, 2.0), evidence(1.0, 2.0)
    assert [
        count_above(first, 0.0),
        count_above(first, 1.5),
        count_above(first, 0.0),
        count_above(first, 0.0, shift=1.5),
    ] == [2, 1, 2, 1]
    assert count_above(second, 0.0) == 2
    assert calls == [(id(first), 0.0), (id(first), 1.5), (id(first), 1.5), (id(second), 0.0)]


def test_an_error_is_not_cached() -> None:
    calls = []

    @cache_by_evidence
    def fails(evidence: Evidence) -> None:
        calls.append(evidence)
        raise ValueError("no rows")

    empty = evidence()
    for _ in range(2):
        with pytest.raises(ValueError, match="no rows"):
            fails(empty)
    assert len(calls) == 2


def test_cached_results_are_freed_with_their_evidence() -> None:
    @cache_by_evidence
    def table(evidence: Evidence) -> pd.DataFrame:
        return evidence.rows * 2

    short_lived = evidence(1.0)
    doubled = ref(table(short_lived))
    assert doubled() is not None
    del short_lived
    gc.collect()
    assert doubled() is None
