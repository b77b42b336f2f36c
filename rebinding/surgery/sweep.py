"""Several edited runs of the same prompts as one batch, and edits and reads of heads in several layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.recording import Recording, Surgeon
from rebinding.surgery.sites import HEADLESS, KEYED, Attention, Edit, Index, LogitsOf, Mode, Read, Reduce, Scope, Site

Head: TypeAlias = tuple[int, int]
"""(layer, head)."""
Variant: TypeAlias = Sequence[Edit]
"""The edits of one run of all prompts; without any it is the unedited run."""


def sweep(
    surgeon: Surgeon,
    recording: Recording,
    variants: Sequence[Variant],
    reads: Sequence[Read],
    *,
    source: Tensor | None = None,
    attention: Attention = "live",
    allow_noop: bool = False,
) -> list[Tensor]:
    """Run every prompt under every variant, in one batch: (variant, prompt, ...) for each read.

    Edits and reads say what they do to the prompts: row n is the recorded prompt `source[n]`, by default prompt n. A
    row that no edit of a variant names is unedited there.
    """
    source = torch.arange(recording.n_prompts) if source is None else source
    n, copies = source.numel(), len(variants)
    values = surgeon.run(
        recording,
        _joined(variants, n),
        [_repeated(read, copies, n) for read in reads],
        source=source.repeat(copies),
        attention=attention,
        allow_noop=allow_noop,
    )
    return [value.unflatten(0, (copies, n)) for value in values]


def _joined(variants: Sequence[Variant], n: int) -> list[Edit]:
    """The edits of all variants, numbered by rows of the batch. Those that differ in values alone are one edit: a plan
    looks at each edit once. Edits of one site keep their order, since the first of these come before all second ones.
    """
    alike: dict[tuple[Any, ...], list[tuple[Edit, Tensor]]] = {}
    for number, variant in enumerate(variants):
        counts = Counter[tuple[Site, int]]()
        for edit in variant:
            counts[edit.site, edit.layer] += 1
            rows = torch.arange(n) if edit.rows is None else edit.rows
            key = counts[edit.site, edit.layer], *(_kind(edit, len(rows)) or (number, id(edit)))
            alike.setdefault(key, []).append((edit, rows + number * n))
    return [_join(alike[key]) for key in sorted(alike, key=lambda key: key[0])]


def _kind(edit: Edit, n_rows: int) -> tuple[object, ...] | None:
    """All but the values and positions of an edit; None if it has no value of its own in every row."""
    value, has_table = edit.value, edit.heads is not None and len(edit.heads) > 1
    if edit.where is not None or has_table or value.ndim < 3 or len(value) != n_rows:
        return None
    heads = None if edit.heads is None else tuple(edit.heads[0].tolist())
    shape = *value.shape[1:], value.dtype, value.device, edit.positions.shape[1]
    return edit.site, edit.layer, edit.mode, edit.scope, heads, shape


def _join(parts: Sequence[tuple[Edit, Tensor]]) -> Edit:
    """One edit of all rows of several that differ in values and positions alone."""
    first, rows = parts[0][0], [rows for _, rows in parts]
    value, positions = first.value, first.positions
    if len(parts) > 1:
        value = torch.cat([edit.value for edit, _ in parts])
        positions = torch.cat([edit.positions.expand(len(of_edit), -1) for edit, of_edit in parts])
    options: dict[str, Any] = {"mode": first.mode, "scope": first.scope, "where": first.where, "heads": first.heads}
    return Edit(first.site, first.layer, value, positions=positions, rows=torch.cat(rows), **options)


def _repeated(read: Read, copies: int, n: int) -> Read:
    """A read of n rows as one of `copies` times as many."""
    positions, heads = read.positions, read.heads
    positions = positions.repeat(copies, 1) if len(positions) > 1 else positions
    heads = heads.repeat(copies, 1) if heads is not None and len(heads) > 1 else heads
    return Read(read.site, read.layer, positions=positions, heads=heads, reduce=_for_copies(read.reduce, copies, n))


def _for_copies(reduce: Reduce | None, copies: int, n: int) -> Reduce | None:
    """A reduction that is told rows of the batch, from one that knows rows of the prompts."""
    if reduce is None or copies == 1:
        return reduce
    if isinstance(reduce, LogitsOf):
        return LogitsOf(reduce.tokens.repeat(copies, 1))
    return lambda values, rows: reduce(values, rows % n)


def by_layer(heads: Sequence[Head]) -> dict[int, list[int]]:
    """The places in `heads` of the heads of each layer."""
    layers: dict[int, list[int]] = {}
    for place, (layer, _) in enumerate(heads):
        layers.setdefault(layer, []).append(place)
    return layers


def edit_heads(
    anatomy: Anatomy,
    site: Site,
    heads: Sequence[Head],
    value: Tensor,
    *,
    at: Index,
    mode: Mode = "set",
    scope: Scope | None = None,
) -> list[Edit]:
    """Edits of heads of any layers: `value` is (row, head, position, width), in the order of `heads`. Numbers beyond
    the width of a layer's heads are dropped."""
    edits = []
    for layer, places in by_layer(heads).items():
        part = value[:, places] if site in KEYED else value[:, places, :, : anatomy.parts[layer].head_dim]
        names = [heads[place][1] for place in places]
        edits.append(Edit(site, layer, part, positions=at, heads=names, mode=mode, scope=scope))
    return edits


def read_heads(site: Site, heads: Sequence[Head], *, at: Index, reduce: Reduce | None = None) -> list[Read]:
    """Reads of heads of any layers; `join_heads` puts their results together."""
    assert site not in HEADLESS
    return [
        Read(site, layer, positions=at, heads=[heads[place][1] for place in places], reduce=reduce)
        for layer, places in by_layer(heads).items()
    ]


def join_heads(heads: Sequence[Head], values: Sequence[Tensor], axis: int = 1) -> Tensor:
    """The results of `read_heads` as one tensor, heads in the order in which they were given. `axis` is that of heads:
    2 after a sweep."""
    order = torch.tensor([place for places in by_layer(heads).values() for place in places])
    joined = torch.cat([value.to(values[0].device) for value in values], dim=axis)
    return joined.index_select(axis, torch.argsort(order).to(joined.device))
