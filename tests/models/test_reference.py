"""The reference of a certificate is what plain hooks give, at every site; and deviations by hand."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from rebinding.models.certificate import FLOOR, Deviation
from rebinding.models.probe import Allowance, draw_tokens
from rebinding.models.reference import CELLS, Cell, Reference, Trial, cells_at, make_trials, softmax
from rebinding.paper.certificate import LARGEST
from rebinding.surgery import derive
from rebinding.surgery.sites import ATTENTIONS, Attention, Read
from tests.families.hooks import run_with_hooks
from tests.surgery.models import FAMILIES, Family, tiny

LAYER, POSITION = 1, 20


@functools.cache
def reference_of(family: Family) -> Reference:
    model = tiny(family)
    anatomy = derive(model)
    return Reference(model, anatomy, draw_tokens(model, anatomy))


def trials_at(reference: Reference, layer: int, attention: Attention) -> dict[Cell, Trial]:
    cells = cells_at(reference.anatomy, layer, attention)
    length = reference.tokens.shape[1]
    return dict(zip(cells, make_trials(reference.anatomy, cells, layer, POSITION, length, lambda *_: 2.0), strict=True))


def hooked(reference: Reference, family: Family, trials: list[Trial], read: Read) -> Tensor:
    edits = [trial.edit(row) for row, trial in enumerate(trials)]
    rows = reference.tokens.expand(max(len(trials), 1), -1)
    is_frozen = bool(trials) and trials[0].attention == "frozen"
    (value,) = run_with_hooks(tiny(family), family, rows, edits, [read], frozen=is_frozen)
    return value


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_agrees_with_plain_hooks(family: Family, attention: Attention) -> None:
    reference = reference_of(family)
    allowance, length = Allowance.of_model(reference.model, reference.anatomy), reference.tokens.shape[1]
    read = Read("resid", at=range(length), layer=4)
    clean = hooked(reference, family, [], read)
    for layer in (LAYER, 4):
        trials = trials_at(reference, layer, attention)
        trials = {cell: trial for cell, trial in trials.items() if cell.site != "logits"}
        expected = hooked(reference, family, list(trials.values()), read)  # (trial, token, hidden)
        actual = reference.run(list(trials.values()))
        for row, cell in enumerate(trials):
            assert allowance.near(actual[row], expected[row]), (layer, str(cell))
            assert not allowance.near(actual[row], clean[0]), (layer, str(cell))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_agree_with_plain_hooks(family: Family) -> None:
    reference = reference_of(family)
    allowance, read = Allowance.of_model(reference.model, reference.anatomy), Read("logits", at=range(40))
    (trial,) = (trial for cell, trial in trials_at(reference, 4, "live").items() if cell.site == "logits")
    expected = hooked(reference, family, [trial], read)
    assert allowance.near(reference.logits(trial)[:, :40], expected)
    assert not allowance.near(reference.logits(None)[:, :40], expected)


def test_sinks_take_a_share_of_their_own() -> None:
    scores, sinks = torch.tensor([[[[0.0, 0.0]], [[0.0, 0.0]]]]), torch.tensor([0.0, float("-inf")])
    expected = torch.tensor([[[[1 / 3, 1 / 3]], [[1 / 2, 1 / 2]]]])  # the first head has a sink of the same weight
    assert torch.allclose(softmax(scores, sinks), expected)


def test_every_cell_is_tried_at_some_layer() -> None:
    anatomy = reference_of("llama").anatomy
    tried = {cell for layer in (0, 4) for attention in ATTENTIONS for cell in cells_at(anatomy, layer, attention)}
    assert tried == set(CELLS)


ALLOWANCE = Allowance(depth=2, width=16)
BELOW = torch.finfo(torch.float32).min


def test_a_residual_is_compared_token_by_token_with_every_dimension_at_its_size() -> None:
    """Sizes are 1000 and 1; the second token differs by 0.01 in the small dimension, where both tokens have 1."""
    resid = torch.tensor([[[1000.0, 1.0], [1000.0, 1.0]]])
    deviation = Deviation.of_resid(ALLOWANCE, resid)
    actual = resid[0] + torch.tensor([[0.0, 0.0], [0.0, 0.01]])
    token, off = deviation.resids(actual, resid[0])
    assert token == 1
    assert off == pytest.approx(math.sqrt(0.01**2 / 2) / ALLOWANCE.relative, rel=1e-3)
    assert deviation.resids(resid[0], resid[0]) == (0, 0.0)


def test_a_dimension_near_zero_counts_as_a_share_of_the_whole() -> None:
    resid = torch.tensor([[[2.0, 0.0]]])
    assert torch.allclose(Deviation.of_resid(ALLOWANCE, resid).scale, torch.tensor([2.0, FLOOR * math.sqrt(2.0)]))


def test_infinite_and_missing_numbers_are_the_largest_deviation() -> None:
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    for wrong in (math.nan, math.inf, 1e30):
        assert deviation.values(torch.tensor([[1.0], [wrong]]), torch.ones(2, 1)) == (1, LARGEST)
    assert deviation.values(torch.ones(1, 1), torch.zeros(1, 1)) == (0, LARGEST)  # nothing is allowed at zero
    assert deviation.values(torch.zeros(1, 1), torch.zeros(1, 1)) == (0, 0.0)


@pytest.mark.parametrize(
    ("row", "off"),
    [
        ([1.0, BELOW], 0.0),
        ([1.0, -math.inf], 0.0),
        ([1.0, 0.0], LARGEST),  # not masked
        ([BELOW, BELOW], LARGEST),  # masked where the other is not
        ([1.0 + ALLOWANCE.relative, BELOW], 1.0),
    ],
)
def test_masked_scores_have_to_be_masked_in_both(row: list[float], off: float) -> None:
    """One query, two keys, the second masked; the visible score is 1."""
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    actual, expected = torch.tensor([[row]]), torch.tensor([[[1.0, BELOW]]])
    assert deviation.scores(actual, expected)[1] == pytest.approx(off, rel=2e-2)
