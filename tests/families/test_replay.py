"""Recordings hold what a forward gives, and a replay without a change gives it again, from any layer and token."""

from __future__ import annotations

import pytest
import torch

from rebinding.surgery import Edit, Read, TorchSurgeon
from rebinding.surgery.sites import SITES
from tests.families.batches import FIRST, make_batch, read_all
from tests.families.engines import error_of_rows, make_surgeon, run_reference, tolerance
from tests.families.hooks import run_with_hooks
from tests.families.models import COMMON, EVERYDAY, LENGTH, MODELS, PROMPTS, RandomModel, reference_model
from tests.families.tables import TABLES
from tests.surgery.cases import Cell

EVERY_PROMPT = torch.arange(PROMPTS)


@pytest.mark.parametrize("common", [COMMON, 0], ids=["beginning", "whole"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_every_site_is_read_as_hooks_read_it(model: RandomModel, common: int) -> None:
    """Where prompts begin alike, the recording continues the first prompt; else it runs them whole."""
    table, prompts = TABLES[model.family], model.prompts
    prompts[:, 0] = 3 + (0 if common else EVERY_PROMPT)
    reads = [read_all(table, site, layer) for site in SITES for layer in table.layers_with(site)]
    surgeon, _ = make_surgeon(model)
    recording = surgeon.record(prompts, keep=set(SITES) - {"logits"})
    actual = surgeon.run(recording, [], reads)
    expected = run_with_hooks(reference_model(model), model.family, prompts, [], reads)
    errors = {
        f"{read.site} {read.layer}": float(error_of_rows([value], [truth]).max())
        for read, value, truth in zip(reads, actual, expected, strict=True)
    }
    assert max(errors.values()) <= tolerance(model), errors


@pytest.mark.parametrize("first", [0, FIRST, LENGTH - 1], ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_replay_without_a_change_is_the_forward(model: RandomModel, first: int) -> None:
    """A layer's input at one token is overwritten and restored: the run continues from there with the same values."""
    table = TABLES[model.family]
    layers = table.layers_with("resid")
    source = torch.arange(len(layers)) % PROMPTS
    inputs = [Read("resid", at=[first], layer=layer) for layer in layers]
    restored = run_reference(model, source, [], inputs)
    edits = [
        Edit("resid", value, at=[first], layer=layer, rows=[row])
        for row, layer in enumerate(layers)
        for value in (torch.full((table.hidden,), 3.0), restored[row][row])
    ]
    reads = [
        Read("resid", at=range(first, LENGTH), layer=len(table.layers)),
        Read("logits", at=range(first, LENGTH)),
    ]
    surgeon, recording = make_surgeon(model)
    actual = surgeon.run(recording, edits, reads, source=source, allow_noop=True)
    errors = error_of_rows(actual, run_reference(model, source, [], reads))
    assert errors.max() <= tolerance(model), dict(zip(layers, errors.tolist(), strict=True))
    broken = surgeon.run(recording, edits[::2], reads, source=source)
    assert error_of_rows(broken, actual).min() > tolerance(model)


@pytest.mark.parametrize("cell", [Cell("resid"), Cell("k", "head"), Cell("z", attention="frozen")], ids=str)
@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_rows_in_parts_give_the_same(model: RandomModel, cell: Cell) -> None:
    """Three rows at a time, that start at other layers."""
    batch = make_batch(model.family, cell, is_windowed=True)
    surgeon, recording = make_surgeon(model)
    parts = TorchSurgeon(surgeon.model, surgeon.anatomy, rows=3)
    whole, split = (
        any_surgeon.run(recording, batch.edits, batch.reads, source=batch.source, attention=cell.attention)
        for any_surgeon in (surgeon, parts)
    )
    assert error_of_rows(split, whole).max() <= tolerance(model)


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_which_families_run_frozen_attention_on_few_tokens(model: RandomModel) -> None:
    """Gemma 3n and 4 add more than two branches to the residual stream, or scale it."""
    surgeon, _ = make_surgeon(model)
    has_two_branches = not model.family.startswith("gemma") or model.family == "gemma4_text_equal"
    assert (surgeon.anatomy.branches is not None) == has_two_branches
