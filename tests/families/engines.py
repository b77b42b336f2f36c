"""Batches of edits and reads at every site, the surgeon of every random model, and how far rounding may take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rebinding.models.reference import Cell
from rebinding.surgery import Edit, Read, RecordedRun, TorchSurgeon, derive
from rebinding.surgery.sites import HEADLESS, KEYED, Mode, Site
from tests.arithmetic.rounding import rounding
from tests.families.hooks import run_with_hooks
from tests.families.models import LENGTH, N_HEADS, PROMPTS, VOCABULARY, Family, RandomModel, reference_model
from tests.families.tables import TABLES, Table
from tests.surgery.small_edits import place

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
    multiplies matrices of other shapes, in other orders: it may be off the exact result by that much, and edits several
    times as large as what was there amplify it (measured: both together, twice). Layers with a state norm short
    vectors, and an edit may make them shorter: three times as much (measured under `--rounding`: 1.5 times).
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


FIRST = 6
"""The first token that a windowed batch edits and reads; the tokens before it are those of the unedited run."""

SIZE = 3.0
"""Of the values written, in units of what passes through matrices of gain 1."""
LONELY: frozenset[Site] = frozenset({"q", "q_rot", "scores"})
"""Sites whose value at the first token changes nothing: it has one key to attend to."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Edits and reads of one call, and the layer that each row edits; the last row has edits at all layers."""

    edits: list[Edit]
    reads: list[Read]
    source: Tensor
    layers: list[int]


def make_batch(family: Family, cell: Cell, *, is_windowed: bool, has_reused: bool = True) -> Batch:
    """Edits at all layers with the site, at other heads and tokens in every row: two rows set it, two add to it.

    Without `has_reused` there are no edits of keys and values that a layer takes from another one. The reads are the
    last residual and the logits at every token; where the batch is not windowed, the site itself too, and a pattern if
    attention is frozen.
    """
    table, dice = TABLES[family], torch.Generator().manual_seed(sum(map(ord, family + str(cell))) + is_windowed)
    first = FIRST if is_windowed else int(cell.site in LONELY)
    layers = [
        layer for layer in table.layers_with(cell.site) if has_reused or table.source_of(cell.site, layer) == layer
    ]
    last_row = 4 * len(layers)
    edits: list[Edit] = []
    for number, layer in enumerate(layers):
        rows = [4 * number + i for i in range(4)]
        halves: list[tuple[Mode, list[int]]] = [("set", rows[:2]), ("add", rows[2:])]
        for mode, pair in halves:
            edits.append(_edit(table, cell, layer, first, dice, rows=pair, mode=mode, n_positions=3))
        edits.append(_edit(table, cell, layer, first, dice, rows=[last_row], mode="add", n_positions=1))
    reads = [Read("resid", at=range(first, LENGTH), layer=len(table.layers))]
    reads.append(Read("logits", at=range(first, LENGTH)))
    if not is_windowed:
        reads += [read_all(table, cell.site, layer) for layer in layers]
        if cell.attention == "frozen":  # attention has to run although its output is held
            reads.append(read_all(table, "pattern", table.layers_with("pattern")[-1]))
    source = torch.randint(PROMPTS, (last_row + 1,), generator=dice)
    return Batch(edits, reads, source, [layer for layer in layers for _ in range(4)])


def read_all(table: Table, site: Site, layer: int) -> Read:
    """A read of a site at all heads and tokens."""
    heads = None if site in HEADLESS else range(count_heads(table, site, "group", layer))
    return Read(site, at=range(LENGTH), **place(site, layer, heads))


def count_heads(table: Table, site: Site, scope: str | None, layer: int) -> int:
    """Heads of a site: of raw keys and values, KV heads."""
    return table.layers[layer].kv_heads if site in ("k", "v") and scope == "group" else N_HEADS


def width_of(table: Table, site: Site, layer: int) -> int:
    """The last axis of a site."""
    if site == "logits":
        return VOCABULARY
    if site in KEYED:
        return LENGTH
    widths = {"resid": table.hidden, "resid_mid": table.hidden, "mlp_out": table.hidden // table.streams}
    return widths.get(site) or table.layers[layer].head_dim


def _edit(
    table: Table,
    cell: Cell,
    layer: int,
    first: int,
    dice: torch.Generator,
    *,
    rows: list[int],
    mode: Mode,
    n_positions: int,
) -> Edit:
    def draw(count: int, start: int, stop: int) -> Tensor:
        order = torch.stack([torch.randperm(stop - start, generator=dice) for _ in rows])
        return start + order[:, :count]  # (row, count)

    positions, width = draw(n_positions, first, LENGTH), width_of(table, cell.site, layer)
    shape: tuple[int, ...] = (len(rows), n_positions, width)
    heads = None
    if cell.site not in HEADLESS:
        heads = draw(3, 0, count_heads(table, cell.site, cell.scope, layer))
        shape = (len(rows), heads.shape[1], n_positions, width)
    value = SIZE * torch.randn(shape, generator=dice)
    where = torch.rand(shape[:-1], generator=dice) < 0.7
    where[..., -1] = True
    return Edit(
        cell.site,
        value,
        at=positions,
        rows=rows,
        mode=mode,
        where=where,
        **place(cell.site, layer, heads, scope=cell.scope),
    )
