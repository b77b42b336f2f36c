"""The torch surgeon and nnsight carry out the same experiment: the same table, row by row."""

from __future__ import annotations

import pandas as pd
import pytest

from rebinding.experiments.binding.conditions import (
    MATCHED_RANDOM,
    PUBLISHED_CONDITIONS,
    QK_SOURCE,
)
from rebinding.surgery.sites import Scope
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import random_model
from tests.surgery.models import Family

ALL_CONDITIONS = (*PUBLISHED_CONDITIONS, QK_SOURCE, *MATCHED_RANDOM)


@pytest.mark.parametrize(("family", "scope"), [("llama", "group"), ("gemma2", "head"), ("gemma3", "group")])
def test_both_surgeons_give_the_same_table(family: Family, scope: Scope) -> None:
    """Every condition, on heads of which two share a KV head; no condition that leaves everything as it was."""
    torch_evidence, nnsight_evidence = (
        bench.binding("counterbalanced", ALL_CONDITIONS, n=2, scope=scope, draws=1)
        for bench in (random_model(family), random_model(family, oracle=True))
    )
    edited = torch_evidence.rows[[name for name in torch_evidence.rows if name.startswith("after_")]].to_numpy()
    clean = torch_evidence.rows[
        [name.replace("after", "before") for name in torch_evidence.rows if name.startswith("after_")]
    ].to_numpy()
    close = allowance(clean, edited, floor=1.0)  # attention is of size one, logits of a few
    pd.testing.assert_frame_equal(torch_evidence.rows, nnsight_evidence.rows, check_exact=False, rtol=0, atol=close)
    assert torch_evidence.settings == nnsight_evidence.settings
    for condition, places in torch_evidence.rows.groupby("condition").indices.items():
        assert abs(edited[places] - clean[places]).max() > MIN_CHANGE_SHARE * close, f"{condition} moved nothing"
