"""Edits, held heads and path patching give what plain hooks give, at every token, for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from rebinding.models.reference import CELLS, Cell
from rebinding.surgery import ActiveHeads, Edit, Read, in_layer
from rebinding.surgery.sites import Attention, Scope, Site
from tests.close import MIN_CHANGE_SHARE
from tests.everyday import chosen, sampled
from tests.families.engines import (
    clean_logits,
    count_heads,
    error_of_rows,
    make_batch,
    make_surgeon,
    run_reference,
    tolerance,
)
from tests.families.models import ALL_MODELS, DIFFERENT, EVERYDAY, LENGTH, MODELS, N_HEADS, RandomModel
from tests.families.tables import TABLES, Table
from tests.surgery.small_edits import place

LARGEST_TOLERANCE = 0.02
"""Most families stay below 1e-3; Qwen3.5 at the largest scale norms short vectors of its state and reaches 0.01. Every
row of edits moves the logits by more than twice the tolerance, or the test fails."""


FEW = frozenset({"q", "k head", "v head", "mlp_out", "resid frozen"})
"""Edits that run every day on every family: they meet all that a line of `rebinding/surgery/families.py` says."""


def is_everyday(model: RandomModel, cell: Cell, window: str) -> bool:
    if window == "prompt":
        return model in DIFFERENT[::2]
    return model in DIFFERENT or (model in EVERYDAY and str(cell) in FEW)


CASES = [
    (model, cell, window)
    for model, cell, window in product(ALL_MODELS, CELLS, ("prompt", "window"))
    if TABLES[model.family].layers_with(cell.site)
]


@pytest.mark.parametrize(("model", "cell", "window"), chosen(CASES, is_everyday), ids=str)
def test_edits_equal_those_of_hooks(model: RandomModel, cell: Cell, window: str) -> None:
    """Set and add, at other heads and tokens in every row: the same answers, and not those of the unedited run."""
    batch, frozen = make_batch(model.family, cell, is_windowed=window == "window"), cell.attention == "frozen"
    surgeon, recording = make_surgeon(model)
    actual = surgeon.run(recording, batch.edits, batch.reads, source=batch.source, attention=cell.attention)
    expected = run_reference(model, batch.source, batch.edits, batch.reads, frozen=frozen)
    clean = clean_logits(model)[batch.source][:, LENGTH - expected[1].shape[1] :]  # (row, token, vocabulary)
    allowed, errors = tolerance(model), error_of_rows(actual, expected)  # (row,)
    wrong = {layer: float(error) for layer, error in zip(batch.layers, errors, strict=False) if not error <= allowed}
    assert not wrong, f"layers of edits that differ by more than {allowed:.1e}: {wrong}"
    assert float(errors[-1]) <= allowed, "edits at all layers of one row"
    changes = error_of_rows(expected[1:2], [clean])[:-1].unflatten(0, (-1, 2)).amax(dim=1)  # (layer x mode,)
    assert changes.min() > MIN_CHANGE_SHARE * allowed, "both rows of a layer's edits, set or added, change nothing"


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_tolerances_are_small(model: RandomModel) -> None:
    assert tolerance(model) < LARGEST_TOLERANCE


SOURCE = torch.tensor([0, 2, 1, 2])
READOUT = torch.tensor([13, 13, 12, 13])
HEADS_AND_TOKENS = ((0, 4, 9), (0, 0, 13), (1, 5, 13), (2, 3, 10), (2, 1, 12))
"""Row, head and token of the active heads; the last row has none. Each is active at two layers."""


@pytest.mark.parametrize("model", sampled(ALL_MODELS, RandomModel("llama"), *DIFFERENT), ids=str)
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


Run: TypeAlias = Callable[[Tensor, Sequence[Edit], Sequence[Read], Attention], list[Tensor]]
"""Runs rows that continue prompts, with edits and reads, attention live or frozen."""
CLEAN, CORRUPT = 0, 1
AT = 8
"""The token at which senders send and receivers listen."""
COMPONENTS: tuple[tuple[Site, Scope | None], ...] = (
    ("q", None),
    *((site, scope) for site in ("k", "v") for scope in ("group", "head")),
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
@pytest.mark.parametrize("model", sampled(ALL_MODELS, *DIFFERENT[::2]), ids=str)
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
