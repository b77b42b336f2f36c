"""Path patching of one stage: the surgeon's two runs against the naive schedule of full forwards with hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, in_layer
from rebinding.surgery.sites import Attention, Scope, Site
from tests.families.batches import count_heads
from tests.families.engines import clean_logits, error_of_rows, make_surgeon, run_reference, tolerance
from tests.families.models import LENGTH, MODELS, N_HEADS, RandomModel
from tests.families.tables import TABLES, Table
from tests.surgery.tables import place

Run: TypeAlias = Callable[[Tensor, Sequence[Edit], Sequence[Read], Attention], list[Tensor]]
"""Runs rows that continue prompts, with edits and reads, attention live or frozen."""
CLEAN, CORRUPT = 0, 1
AT = 8
"""The token at which senders send and receivers listen."""
COMPONENTS: tuple[tuple[Site, Scope | None], ...] = (
    ("q", None),
    *((site, scope) for site in ("k", "v") for scope in ("group", "head")),  # type: ignore[misc]
)


def run_stage(run: Run, table: Table, component: Site, scope: Scope | None, attention: Attention) -> list[Tensor]:
    """The logits (sender, token, vocabulary) after all receivers got what reached them.

    Each head of the first layer with heads sends its output of the corrupt prompt; all heads of the last layer with the
    component receive.
    """
    sender, receiver = table.layers_with("z")[0], table.layers_with(component)[-1]
    senders = torch.arange(N_HEADS)
    rows = torch.full((N_HEADS,), CLEAN)
    corrupt = run(torch.tensor([CORRUPT]), [], [Read("z", at=[AT], head=in_layer(sender, senders))], "live")[0]
    patch = Edit("z", corrupt[0, :, None], at=[AT], head=in_layer(sender, senders[:, None]))
    count = count_heads(table, component, "group", receiver)
    received = run(rows, [patch], [Read(component, at=[AT], **place(component, receiver, range(count)))], attention)[0]
    heads = count_heads(table, component, scope, receiver)
    values = received.repeat_interleave(heads // count, dim=1)  # (sender, head, 1, head_dim)
    edit = Edit(component, values, at=[AT], **place(component, receiver, range(heads), scope=scope))
    return run(rows, [edit], [Read("logits", at=range(AT, LENGTH))], "live")


@pytest.mark.parametrize("attention", ["live", "frozen"])
@pytest.mark.parametrize(("component", "scope"), COMPONENTS)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_one_stage_equals_the_naive_schedule(
    model: RandomModel, component: Site, scope: Scope | None, attention: Attention
) -> None:
    table = TABLES[model.family]
    surgeon, recording = make_surgeon(model)

    def run_surgeon(source: Tensor, edits: Sequence[Edit], reads: Sequence[Read], attention: Attention) -> list[Tensor]:
        return surgeon.run(recording, edits, reads, source=source, attention=attention)

    def run_naive(source: Tensor, edits: Sequence[Edit], reads: Sequence[Read], attention: Attention) -> list[Tensor]:
        return run_reference(model, source, edits, reads, frozen=attention == "frozen")

    actual = run_stage(run_surgeon, table, component, scope, attention)
    expected = run_stage(run_naive, table, component, scope, attention)
    clean = [clean_logits(model)[CLEAN, AT:].expand_as(expected[0])]
    assert error_of_rows(actual, expected).max() <= tolerance(model)
    assert error_of_rows(expected, clean).max() > tolerance(model), "no path carries anything"
