"""Shards of one experiment with one set of settings are put together; others are refused, naming where they differ."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from rebinding.evidence.evidence import Evidence, EvidenceError, merge


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
