"""Two surgeons and plain hooks return the same numbers, at every site, for every family.

`pytest tests/surgery/test_agreement.py -k matrix -s` prints the largest disagreement by site, family and pair.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.surgery.derivation import derive
from rebinding.surgery.mean_ablated import ActiveHeads
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import Edit, Read, in_layer
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.arithmetic.rounding import rounding
from tests.close import MIN_CHANGE_SHARE
from tests.families.hooks import run_with_hooks
from tests.surgery.models import FAMILIES, Family, tiny, tokens
from tests.surgery.small_edits import CELLS, LENGTH, SOURCE, Cell, error, make_edits, make_reads

PAIRS = tuple(" / ".join(pair) for pair in combinations(("torch", "nnsight", "hooks"), 2))
SEEDS = (1, 2, 3)


@functools.cache
def surgeons(family: Family) -> tuple[TorchSurgeon, NNsightSurgeon, Tensor]:
    """Both surgeons on one model, and prompts."""
    model = tiny(family)
    anatomy = derive(model)
    return TorchSurgeon(model, anatomy), NNsightSurgeon(model, anatomy), tokens(family, length=LENGTH)


@functools.cache
def plain(family: Family) -> PreTrainedModel:
    """A model on the library's own attention, for hooks: surgeons replace that of theirs."""
    return tiny(family)


@functools.cache
def tolerance(family: Family) -> float:
    """Four times what rounding does to these models: hooks on the model in float32 against itself in float64.

    It is rounded as three processors might (`tests.arithmetic.rounding`), and the worst of them counts. The surgeons
    multiply matrices of other shapes, in other orders: two of them may be off the exact result by that much, and edits
    several times as large as what was there amplify it (measured: both together, twice).
    """
    prompts = tokens(family, length=LENGTH)
    reads = [Read("resid", range(LENGTH), layer=4), Read("logits", range(LENGTH))]
    exact = run_with_hooks(tiny(family).double(), family, prompts, [], reads)
    errors = []
    for seed in SEEDS:
        with rounding(seed):
            errors.append(
                error(exact, [value.double() for value in run_with_hooks(tiny(family), family, prompts, [], reads)])
            )
    return 4 * max(errors)


@functools.cache
def disagreement(family: Family, cell: Cell) -> dict[str, float]:
    """The largest error of every pair over set and add; and how far the logits of the least moved row were moved."""
    torch_surgeon, nnsight_surgeon, prompts = surgeons(family)
    frozen = cell.attention == "frozen"
    reads = make_reads(cell)
    clean = run_with_hooks(plain(family), family, prompts[SOURCE], [], reads, frozen=frozen)[-1]
    actual = dict.fromkeys(PAIRS, 0.0) | {"moved": float("inf")}
    for mode in ("set", "add"):
        edits = make_edits(cell, mode)
        answers = {
            name: surgeon.run(
                surgeon.record(prompts, keep={"z"}), edits, reads, source=SOURCE, attention=cell.attention
            )
            for name, surgeon in (("torch", torch_surgeon), ("nnsight", nnsight_surgeon))
        }
        answers["hooks"] = run_with_hooks(plain(family), family, prompts[SOURCE], edits, reads, frozen=frozen)
        for pair in PAIRS:
            first, second = pair.split(" / ")
            actual[pair] = max(actual[pair], error(answers[first], answers[second]))
        changed = (answers["hooks"][-1] - clean).flatten(1).abs().amax(dim=1)  # (row,)
        actual["moved"] = min(actual["moved"], float(changed.min()))
    return actual


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_three_agree_and_every_row_changes(family: Family, cell: Cell) -> None:
    """Random edits, other heads and positions in every row: same answers, and not those of the unedited run."""
    actual = disagreement(family, cell)
    assert all(actual[pair] <= tolerance(family) for pair in PAIRS), (actual, tolerance(family))
    assert actual["moved"] > MIN_CHANGE_SHARE * tolerance(family), (
        "these edits would not tell an edited run from a clean one"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_with_almost_every_head_held_agree(family: Family) -> None:
    """Heads held everywhere but at a few places are z written everywhere but there, and nothing else."""
    torch_surgeon, nnsight_surgeon, prompts = surgeons(family)
    dice = torch.Generator().manual_seed(5)
    fixed_z = [torch.randn(6, LENGTH, 10, generator=dice) for _ in range(4)]
    places = torch.tensor([[0, 1, 4, 9], [0, 2, 0, 12], [1, 3, 5, 12], [2, 0, 3, 10], [2, 2, 1, 12]])
    active = ActiveHeads(*places.unbind(dim=1))
    readout = torch.tensor([12, 12, 12, 11])
    edits, all_fixed = [], []
    for layer in range(4):
        mask = torch.ones(4, 6, LENGTH, dtype=torch.bool)
        mask[tuple(places[places[:, 1] == layer][:, [0, 2, 3]].unbind(dim=1))] = False
        edits.append(Edit("z", fixed_z[layer], at=range(LENGTH), head=in_layer(layer, range(6)), where=mask))
        all_fixed.append(Edit("z", fixed_z[layer], at=range(LENGTH), head=in_layer(layer, range(6))))
    read = Read("logits", at=readout[:, None])
    expected = run_with_hooks(plain(family), family, prompts[SOURCE], edits, [read])
    nnsight_values = nnsight_surgeon.run(nnsight_surgeon.record(prompts), edits, [read], source=SOURCE)
    recording = torch_surgeon.record_mean_ablated(prompts, fixed_z)
    actual = torch_surgeon.run_mean_ablated(
        recording, active, source=SOURCE, readout=readout, reduce=lambda logits, _: logits
    )
    silent = run_with_hooks(plain(family), family, prompts[SOURCE], all_fixed, [read])
    assert (expected[0] - silent[0])[:3].abs().flatten(1).amax(dim=1).min() > MIN_CHANGE_SHARE * tolerance(family)
    assert error(nnsight_values, expected) <= tolerance(family)
    assert error([actual], expected) <= tolerance(family)


def matrix_lines() -> Iterator[str]:
    """The largest error by site (and pair) down, family across."""
    yield f"{'site':<16}{'surgeons':<18}" + "".join(f"{family:>19}" for family in FAMILIES)
    for cell in CELLS:
        for pair in PAIRS:
            errors = [disagreement(family, cell)[pair] for family in FAMILIES]
            yield f"{cell!s:<16}{pair:<18}" + "".join(f"{value:>19.1e}" for value in errors)
    yield f"{'tolerance':<34}" + "".join(f"{tolerance(family):>19.1e}" for family in FAMILIES)


def test_edit_matrix_is_complete_and_within_tolerance() -> None:
    """The whole matrix, printed (use -s), has a finite number in every cell."""
    lines = list(matrix_lines())
    print("\nlargest disagreement, relative to max(1, size)\n" + "\n".join(lines))
    assert len(lines) == 2 + len(CELLS) * len(PAIRS)
    errors = [float(word) for line in lines[1:-1] for word in line.split()[-len(FAMILIES) :]]
    assert len(errors) == len(FAMILIES) * len(CELLS) * len(PAIRS)
    assert max(errors) <= max(tolerance(family) for family in FAMILIES)
