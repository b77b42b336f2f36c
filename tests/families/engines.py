"""The surgeon of every random model, and how far rounding may take it from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from rebinding.models.selfcheck import check_model
from rebinding.surgery import Edit, Read, Recording, TorchSurgeon
from tests.arithmetic.rounding import rounding
from tests.families.batches import read_all
from tests.families.hooks import run_with_hooks
from tests.families.models import LENGTH, RandomModel, reference_model
from tests.families.tables import TABLES

ROUNDING_SEEDS = (1, 2, 3)


@cache
def make_surgeon(model: RandomModel) -> tuple[TorchSurgeon, Recording]:
    """A surgeon on a model that passed the self-check, and a recording of the prompts with z."""
    built = model.build()
    surgeon = TorchSurgeon(built, check_model(built))
    return surgeon, surgeon.record(model.prompts, keep={"z"})


def error_of_rows(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> Tensor:
    """The largest difference in each row, relative where values exceed 1: (row,)."""
    gaps = [
        ((a.double() - b.double()).abs() / b.double().abs().clamp(min=1)).flatten(1).amax(dim=1)
        for a, b in zip(actual, expected, strict=True)
    ]
    return torch.stack(gaps).amax(dim=0)


@cache
def tolerance(model: RandomModel) -> float:
    """Four times what rounding does to the reference: in float32, rounded as three processors might, against float64.

    It is taken over the unedited run and over runs with noise in the first layer's input, at every token. The surgeon
    multiplies matrices of other shapes, in other orders: it may be off the exact result by that much, and edits amplify
    it (`tests/surgery/test_agreement.py` measured twice).
    """
    table, prompts = TABLES[model.family], model.prompts.repeat(2, 1)
    reads = [read_all(table, "resid", len(table.layers)), read_all(table, "logits", len(table.layers))]
    noise = torch.randn(3, prompts.shape[1], table.hidden, generator=torch.Generator().manual_seed(model.seed))
    edit = Edit("resid", 0, noise, positions=range(prompts.shape[1]), rows=[3, 4, 5], mode="add")
    exact = run_with_hooks(model.build().double(), model.family, prompts, [edit], reads)
    errors = []
    for number in ROUNDING_SEEDS:
        with rounding(number):
            rounded = run_with_hooks(reference_model(model), model.family, prompts, [edit], reads)
        errors.append(float(error_of_rows(rounded, exact).max()))
    return 4 * max(errors)


def run_reference(
    model: RandomModel, source: Tensor, edits: Sequence[Edit], reads: Sequence[Read], *, frozen: bool = False
) -> list[Tensor]:
    """The reference's answers for rows that continue prompts `source`."""
    return run_with_hooks(reference_model(model), model.family, model.prompts[source], edits, reads, frozen=frozen)


@cache
def clean_logits(model: RandomModel) -> Tensor:
    """Logits of the unedited prompts (prompt, token, vocabulary)."""
    every = torch.arange(len(model.prompts))
    return run_reference(model, every, [], [Read("logits", positions=range(LENGTH))])[0]
