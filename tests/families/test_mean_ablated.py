"""Runs in which almost every head is held at a given value, against hooks that write it everywhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rebinding.surgery import ActiveHeads, Edit, Read, in_layer
from tests.close import MIN_CHANGE_SHARE
from tests.families.engines import error_of_rows, make_surgeon, run_reference, tolerance
from tests.families.models import LENGTH, MODELS, N_HEADS, RandomModel
from tests.families.tables import TABLES

SOURCE = torch.tensor([0, 2, 1, 2])
READOUT = torch.tensor([13, 13, 12, 13])
HEADS_AND_TOKENS = ((0, 4, 9), (0, 0, 13), (1, 5, 13), (2, 3, 10), (2, 1, 12))
"""Row, head and token of the active heads; the last row has none. Each is active at two layers."""


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_active_heads_compute_and_all_others_are_held(model: RandomModel) -> None:
    table, dice = TABLES[model.family], torch.Generator().manual_seed(5)
    with_heads = table.layers_with("z")
    fixed = [torch.randn(N_HEADS, LENGTH, layer.head_dim, generator=dice) for layer in table.layers]
    places = [(row, layer, head, token) for row, head, token in HEADS_AND_TOKENS for layer in with_heads[-2:]]
    active = ActiveHeads(*torch.tensor(places).unbind(dim=1))

    def hold(*, is_all: bool) -> list[Edit]:
        edits = []
        for layer in with_heads:
            mask = torch.ones(len(SOURCE), N_HEADS, LENGTH, dtype=torch.bool)
            for row, number, head, token in places:
                mask[row, head, token] &= is_all or number != layer
            edits.append(Edit("z", fixed[layer], at=range(LENGTH), head=in_layer(layer, range(N_HEADS)), where=mask))
        return edits

    def reference(*, is_all: bool) -> Tensor:
        return run_reference(model, SOURCE, hold(is_all=is_all), [Read("logits", at=READOUT[:, None])])[0]

    surgeon, _ = make_surgeon(model)
    recording = surgeon.record_mean_ablated(model.prompts, fixed)
    actual = surgeon.run_mean_ablated(
        recording, active, source=SOURCE, readout=READOUT, reduce=lambda logits, rows: logits
    )
    assert error_of_rows([actual], [reference(is_all=False)]).max() <= tolerance(model)
    changes = error_of_rows([actual], [reference(is_all=True)])  # (row,)
    assert changes[:3].min() > MIN_CHANGE_SHARE * tolerance(model), "an active head changes nothing"
