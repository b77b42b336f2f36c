"""Keys edited for one head: which other heads see them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rebinding.experiments.binding.conditions import WRONG_HEADS
from rebinding.experiments.binding.summary import masses
from rebinding.paper.circuit import Head
from rebinding.surgery.sites import Scope
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import Bench, random_model
from tests.surgery.models import Family

KEYS = WRONG_HEADS[1]
"""Shift the keys of the control heads, and read `heads`."""


ROUNDING = allowance(1.0)
"""Runs that start at another token add up the same numbers in another order; attention is a share of one."""


def attention_change(bench: Bench, edited: Head, read: Head, scope: Scope) -> float:
    """The change of the attention of one head when the keys of another are shifted."""
    pair = replace(bench, heads=(read, edited))
    evidence = replace(pair, heads=(read,)).binding(
        "published", [KEYS], n=2, controls=(edited,), scope=scope, directions=pair.directions("published", 2)
    )
    return float(np.abs(masses(evidence, "after") - masses(evidence, "before")).max())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_bystanders_of_a_random_model(family: Family) -> None:
    """A head of the same KV group is affected if the group's keys are edited, and only then."""
    bench = random_model(family)
    layer, head = 2, 4
    group = bench.surgeon.anatomy.parts[0].group
    bystander, stranger = (layer, head // group * group), (layer, (head + group) % bench.surgeon.anatomy.n_heads)
    assert bystander != (layer, head)
    for scope, is_seen in (("group", True), ("head", False)):
        shared = attention_change(bench, (layer, head), bystander, scope)
        assert shared > MIN_CHANGE_SHARE * ROUNDING if is_seen else shared < ROUNDING
        assert attention_change(bench, (layer, head), stranger, scope) < ROUNDING
