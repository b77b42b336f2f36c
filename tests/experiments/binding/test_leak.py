"""Keys edited for one head: which other heads see them."""

from __future__ import annotations

import pytest
import torch

from rebinding.experiments.binding.directions import edit_keys
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Read
from rebinding.surgery.sites import Scope
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import Bench, random_model
from tests.surgery.models import Family

ROUNDING = allowance(1.0)
"""Runs that start at another token add up the same numbers in another order; attention is a share of one."""


def attention_change(bench: Bench, edited: Head, read: Head, scope: Scope) -> float:
    """The change of the attention of one head when the key of another is shifted at a label."""
    surgeon, prompts = bench.surgeon, bench.prompts("published", 2)
    label, readout = (positions(prompts, role)[:, None] for role in ("context_box[0]", "readout"))
    value = torch.ones(len(prompts), 1, 1, surgeon.anatomy.parts[edited[0]].head_dim)  # (prompt, head, token, head_dim)
    edit = edit_keys(surgeon.anatomy, [edited], value, at=label, scope=scope)
    (patterns,) = surgeon.sweep(
        surgeon.record(token_batch(prompts)), [[], [edit]], [Read("pattern", readout, [read])], allow_noop=True
    )
    return float((patterns[1] - patterns[0]).abs().max())


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
