"""The surgeon of every random model, and how far rounding may take it from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from rebinding.surgery import Edit, Read, RecordedRun, TorchSurgeon, derive
from tests.arithmetic.rounding import rounding
from tests.families.batches import read_all
from tests.families.hooks import run_with_hooks
from tests.families.models import LENGTH, RandomModel, reference_model
from tests.families.tables import TABLES

ROUNDING_SEEDS = (1, 2, 3)


@cache
def make_surgeon(model: RandomModel) -> tuple[TorchSurgeon, RecordedRun]:
    """A surgeon on the model and a recording of the prompts with z.

    The anatomy is derived and not checked: the self-check allows for the rounding of a processor, and under
    `--rounding` these models may exceed that. `test_models` checks each family at the smallest scale.
    """
    built = model.build()
    surgeon = TorchSurgeon(built, derive(built))
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
    """Five times what rounding does to the reference: in float32, rounded as three processors might, against float64.

    It is taken over the unedited run and over runs with noise in some layer's input, at every token. The surgeon
    multiplies matrices of other shapes, in other orders: it may be off the exact result by that much, and edits amplify
    it (`tests/surgery/test_agreement.py` measured twice). Layers with a state norm short vectors, and an edit may make
    them shorter: three times as much (measured under `--rounding`: 1.5 times).
    """
    table, n = TABLES[model.family], len(model.prompts)
    prompts = model.prompts.repeat(1 + len(table.layers), 1)
    reads = [read_all(table, "resid", len(table.layers)), read_all(table, "logits", len(table.layers))]
    noise = torch.randn(n, prompts.shape[1], table.hidden, generator=torch.Generator().manual_seed(model.seed))
    edits = [
        Edit(
            "resid",
            noise,
            at=range(prompts.shape[1]),
            layer=layer,
            rows=range(n * layer + n, n * layer + 2 * n),
            mode="add",
        )
        for layer in range(len(table.layers))
    ]
    exact = run_with_hooks(model.build().double(), model.family, prompts, edits, reads)
    errors = []
    for number in ROUNDING_SEEDS:
        with rounding(number):
            rounded = run_with_hooks(reference_model(model), model.family, prompts, edits, reads)
        errors.append(float(error_of_rows(rounded, exact).max()))
    has_state = any(layer.mixer for layer in table.layers)
    return (3 if has_state else 1) * 5 * max(errors)


def run_reference(
    model: RandomModel, source: Tensor, edits: Sequence[Edit], reads: Sequence[Read], *, frozen: bool = False
) -> list[Tensor]:
    """The reference's answers for rows that continue prompts `source`."""
    return run_with_hooks(reference_model(model), model.family, model.prompts[source], edits, reads, frozen=frozen)


@cache
def clean_logits(model: RandomModel) -> Tensor:
    """Logits of the unedited prompts (prompt, token, vocabulary)."""
    every = torch.arange(len(model.prompts))
    return run_reference(model, every, [], [Read("logits", at=range(LENGTH))])[0]
