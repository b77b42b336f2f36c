"""The plan of a run, made before anything is computed: which rows can change, from which layer, at which tokens.

An edit is a no-op if no read can see it, or if it writes the value that is already there.

**Reach** is known before anything is computed. An edit is seen where its value goes: to the sites that are computed
from it in its own layer, to the residual stream of the next layer, and from there to everything above. Within a layer a
value stays at its own head and, unless keys or values carry it on, at its own position. A read anywhere else gives the
unedited value, whatever the edit writes.

**Change** is measured. A value that is read in one run and written back in another equals the unedited value only up to
rounding: the two runs multiply matrices of other shapes. So `set` changes a value where the difference is larger than
rounding. `add` is relative to the value of the same run, and changes it as soon as one bit differs.

By causality an edit at layer `l`, position `p` leaves layers below `l` and positions before `p` as recorded. A row
whose edits cannot reach a read (`rebinding.surgery.plan`), or write what was recorded, is a no-op: its reads are those
of the unedited run and it is not computed. Where a site was not recorded, only the run shows a no-op.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.layers import LayerEdit, LayerRead
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.recording import RecordedRun, gather, lines
from rebinding.surgery.sites import (
    ATTENTIONS,
    HEADLESS,
    KEYED,
    SITES,
    Attention,
    NothingEdited,
    Site,
    SurgeryError,
    check_word,
    checked_source,
)

_FROM_SCORES: frozenset[Site] = frozenset({"scores", "pattern", "z", "resid_mid", "mlp_out"})
_FROM_VALUES: frozenset[Site] = frozenset({"v_seen", "z", "resid_mid", "mlp_out"})

FEEDS: dict[Site, frozenset[Site]] = {
    "resid": frozenset(SITES),
    "q": _FROM_SCORES | {"q", "q_rot"},
    "k": _FROM_SCORES | {"k", "k_rot"},
    "v": _FROM_VALUES | {"v"},
    "q_rot": _FROM_SCORES | {"q_rot"},
    "k_rot": _FROM_SCORES | {"k_rot"},
    "v_seen": _FROM_VALUES,
    "scores": _FROM_SCORES,
    "pattern": _FROM_SCORES - {"scores"},
    "z": frozenset({"z", "resid_mid", "mlp_out"}),
    "resid_mid": frozenset({"resid_mid", "mlp_out"}),
    "mlp_out": frozenset({"mlp_out"}),
    "logits": frozenset({"logits"}),
}
"""The sites of a layer that are computed from each of its sites, itself included."""

SEEN_LATER: frozenset[Site] = frozenset({"resid", "k", "v", "k_rot", "v_seen"})
"""Sites whose value at one position is seen from later positions of the same layer."""

FEEDS_KEYS: frozenset[Site] = frozenset({"resid", "k", "v"})
"""Sites that change the keys and values of a layer for the layers above that reuse them."""

DEVIATIONS = 64
"""Standard deviations of the rounding of a sum that do not count as a change: 5 for the largest of a million values,
times 12 for what the norms, the softmax and the products of one layer magnify it by (the most that was seen, on random
models made for it, is 5 of these 64)."""
UNITS = 8
"""Units in the last place of the model's own dtype that do not count either: a 16-bit model rounds every product, three
of them one after the other in an MLP (the most that was seen is 3.5)."""


def reaching_rows(
    anatomy: Anatomy, edit: LayerEdit, reads: Sequence[LayerRead], rows: Tensor, attention: Attention
) -> Tensor:
    """For each row that an edit names, whether some read can see the edit; best called with the highest reads first."""
    seen = torch.zeros(rows.numel(), dtype=torch.bool)
    for read in reads:
        if bool(seen.all()):
            break
        seen = seen | _seen_by(anatomy, edit, read, rows, attention)
    return seen


def _seen_by(anatomy: Anatomy, edit: LayerEdit, read: LayerRead, rows: Tensor, attention: Attention) -> Tensor:
    is_same_layer = edit.layer == read.layer
    if not _is_above(edit, read, attention) or _is_from_below(anatomy, edit, read):
        return torch.zeros(rows.numel(), dtype=torch.bool)
    edited = lines(edit.positions, torch.arange(rows.numel()))  # (row, position)
    read_at = lines(read.positions, rows)  # (row, position)
    if _spreads(edit, read, attention):
        seen = edited.amin(1) <= read_at.amax(1)
    else:
        seen = (edited[:, :, None] == read_at[:, None, :]).flatten(1).any(dim=1)
    if is_same_layer and edit.heads is not None and read.heads is not None:
        parts = anatomy.parts[edit.layer]
        own = _query_heads(parts, edit.heads, torch.arange(rows.numel()), edit.site, edit.scope)
        seen = seen & (own & _query_heads(parts, read.heads, rows, read.site, "group")).any(dim=1)
    return seen


def _is_above(edit: LayerEdit, read: LayerRead, attention: Attention) -> bool:
    """Whether the read is computed from what the edit writes, at some head and position."""
    if edit.layer > read.layer or (edit.layer == read.layer and read.site not in FEEDS[edit.site]):
        return False
    if edit.scope == "head" and (read.layer, read.site) == (edit.layer, edit.site):
        return False  # the group's own key stays as it is
    is_held = attention == "frozen" and read.site == "z"
    return not is_held or (edit.layer == read.layer and edit.site == "z")


def _is_from_below(anatomy: Anatomy, edit: LayerEdit, read: LayerRead) -> bool:
    """Whether the read is of keys or values that a layer below the edit computed."""
    if read.site not in ("k_rot", "v_seen") or (edit.layer == read.layer and edit.site in ("k", "v", read.site)):
        return False
    key_layer = anatomy.parts[read.layer].key_layer
    feeds = edit.site in FEEDS_KEYS and edit.scope != "head"
    return key_layer < edit.layer or (key_layer == edit.layer < read.layer and not feeds)


def _spreads(edit: LayerEdit, read: LayerRead, attention: Attention) -> bool:
    """Whether the read sees the edit from later positions too."""
    gathers = read.site in (KEYED if attention == "frozen" else _FROM_SCORES)  # z is held where attention is frozen
    if edit.layer == read.layer:
        return gathers and edit.site in SEEN_LATER
    if attention == "frozen":
        return gathers
    return gathers or edit.site in SEEN_LATER or read.layer > edit.layer + 1


def _query_heads(parts: LayerParts, heads: Tensor, rows: Tensor, site: Site, scope: str | None) -> Tensor:
    """The query heads that an edit or a read names, as flags (row, head); a KV head stands for its whole group."""
    is_grouped = site in ("k", "v") and scope == "group"
    flags = torch.zeros(rows.numel(), parts.n_kv_heads if is_grouped else parts.n_heads, dtype=torch.bool)
    flags.scatter_(1, lines(heads, rows), True)
    return flags.repeat_interleave(parts.group, dim=1) if is_grouped else flags


def changes_recorded(recording: RecordedRun, edit: LayerEdit, source: Tensor, rows: Tensor) -> Tensor:
    """For each touched row, whether the edit writes another value than the recorded one; on the recording's device."""
    full = (rows.numel(),) + (1,) * (3 if edit.heads is not None else 2)
    value = edit.value.reshape((1,) * (len(full) - edit.value.ndim) + tuple(edit.value.shape))
    if edit.mode == "add":
        is_nonzero = (value != 0).flatten(1).any(dim=1)  # (rows or 1,)
        return is_nonzero.expand(rows.numel())
    if (
        not recording.has(edit.site) or edit.site == "logits" or edit.scope == "head"
    ):  # kept per KV head: only the run shows it
        return torch.ones(rows.numel(), dtype=torch.bool)
    places = LayerRead(edit.site, edit.layer, positions=edit.positions, heads=edit.heads)
    layer_values = recording.sites[edit.site][edit.layer]
    recorded = gather(layer_values, source[rows], places, torch.arange(rows.numel()))
    differs = value.to(recorded) != recorded  # (row, [head,] position, width)
    if edit.where is not None:
        differs = differs & edit.where.to(recorded.device)[..., None]
    return differs.flatten(1).any(dim=1)


def rounding_of_sums(hidden: int) -> float:
    """Units in the last place of float32 by which two sums over a layer's widest matrix (4 `hidden` terms, in another
    order) may differ: a random walk of sqrt(K) / 4 (`rebinding.models.allowance`), `DEVIATIONS` of them."""
    return DEVIATIONS * math.sqrt(4 * hidden) / 4


def changed_rows(
    before: Tensor,
    after: Tensor,
    index: tuple[Tensor, ...],
    *,
    site: str,
    mode: Literal["set", "add"],
    sums: float,
) -> Tensor:
    """Whether a site's value (row, [head,] token, width) changed at the places of an edit: (row of the edit,).

    `sums` is `rounding_of_sums` of the model.
    """
    old, new = before[index], after[index]
    if mode == "add":
        return (new != old).flatten(1).any(dim=1)
    precision = torch.finfo(old.dtype).eps
    allowed = UNITS * precision + sums * min(precision, torch.finfo(torch.float32).eps)
    size = old.abs() + _typical_size(before, site)  # (row, [head,] position, width)
    return ~((new - old).abs() <= allowed * size).flatten(1).all(dim=1)  # NaN is a change


def _typical_size(value: Tensor, site: str) -> float | Tensor:
    """The mean size of a value; 1 for scores, where masked ones are near the largest number of the dtype."""
    if site == "scores":
        return 1.0
    precise = torch.promote_types(value.dtype, torch.float32)  # a sum of many numbers of 16 bits overflows
    total: Tensor = torch.linalg.vector_norm(value, ord=1, dtype=precise)  # one pass, and no copy
    return total / value.numel()


def check_changed(must_change: Tensor, changed: Tensor) -> None:
    """Raise `NothingEdited` for the rows (row,) that must change and do not."""
    unchanged = torch.nonzero(must_change & ~changed).reshape(-1)
    if not unchanged.numel():
        return
    count = unchanged.numel()
    first = ", ".join(map(str, unchanged[:5].tolist())) + (", ..." if count > 5 else "")
    raise NothingEdited(
        f"the edits of {count} of {must_change.numel()} rows change nothing that is read (row {first}): they write the "
        "values that are there already, add zero, or no read can see them. The result would be the unedited run. Check "
        "the edit's value, layer, heads and positions; pass allow_noop=True if a no-op is meant."
    )


STAGES: tuple[tuple[Site, ...], ...] = (
    ("resid",),
    ("q", "k", "v"),
    ("q_rot", "k_rot", "v_seen"),
    *(("scores",), ("pattern",), ("z",), ("resid_mid",), ("mlp_out",), ("logits",)),
)
ORDER: dict[Site, int] = {site: number for number, sites in enumerate(STAGES) for site in sites}
NEVER = 1 << 30
"""The start layer of a no-op row."""

Target = TypeVar("Target", LayerEdit, LayerRead)
FREEZABLE: frozenset[Site] = frozenset({"resid", "z", "resid_mid", "mlp_out", "logits"})
assert set(ORDER) == set(SITES)


@dataclass(frozen=True, eq=False)
class Plan:
    """Edits and reads of one call, checked, and for every row the layer and the tokens that it can change.

    `reaches` says for each edit which of its rows a read can see. `must_change` are the rows (row,) that an edit names:
    each has to change by more than the rounding of `sums` (`rebinding.surgery.plan`). It is empty where no-ops are
    allowed.
    """

    edits: tuple[LayerEdit, ...]
    reads: tuple[LayerRead, ...]
    source: Tensor
    start: Tensor
    first: Tensor
    last: Tensor
    stop: int
    reaches: tuple[Tensor, ...]
    must_change: Tensor
    sums: float

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return int(self.source.numel())


def touched(edit: LayerEdit, n_rows: int) -> Tensor:
    """The rows that an edit names."""
    return torch.arange(n_rows) if edit.rows is None else edit.rows


def make_plan(
    anatomy: Anatomy,
    recording: RecordedRun,
    edits: Sequence[LayerEdit],
    reads: Sequence[LayerRead],
    source: Tensor | None,
    attention: Attention,
    *,
    allow_noop: bool,
) -> Plan:
    """Check a call and find where each of its rows starts.

    `source` is a 1-d integer tensor, the number of a recorded prompt for each row; a list is refused.
    """
    check_word("attention", attention, ATTENTIONS)
    source = checked_source(source, recording.n_prompts)
    if not reads:
        raise SurgeryError("nothing is read: list at least one Read")
    checked_edits = tuple(_checked_edit(anatomy, recording, edit, source, attention) for edit in edits)
    checked_reads = tuple(_checked_place(anatomy, recording, read, source.numel()) for read in reads)
    highest = sorted(checked_reads, key=lambda read: (read.layer, ORDER[read.site]), reverse=True)
    reaches = tuple(
        reaching_rows(anatomy, edit, highest, touched(edit, source.numel()), attention) for edit in checked_edits
    )
    start = _starts(recording, checked_edits, reaches, source)
    must_change = torch.zeros(source.numel(), dtype=torch.bool)
    for edit in checked_edits if not allow_noop else ():
        must_change[touched(edit, source.numel())] = True
    check_changed(must_change, start != NEVER)
    stop = max(read.layer for read in checked_reads)
    first, last = _window(recording, checked_edits, checked_reads, source)
    for read in checked_reads:  # begin earlier where a read lies below a row's first edit and was not recorded
        start = start.clamp(max=read.layer) if recording.lookup(read, source) is None else start
    return Plan(
        checked_edits,
        checked_reads,
        source,
        start,
        first,
        last,
        stop,
        reaches,
        must_change,
        rounding_of_sums(anatomy.hidden),
    )


def _checked_edit(
    anatomy: Anatomy, recording: RecordedRun, edit: LayerEdit, source: Tensor, attention: Attention
) -> LayerEdit:
    if attention == "frozen" and edit.site not in FREEZABLE:
        raise SurgeryError(
            f"an edit of {edit.site} cannot act while attention is frozen: z is held at its recorded value. "
            "Edit z itself, or run with attention='live'."
        )
    rows = touched(edit, source.numel())
    if int(rows.max()) >= source.numel():
        raise SurgeryError(f"an edit names row {int(rows.max())}; the batch has rows 0..{source.numel() - 1}")
    edit = _checked_place(anatomy, recording, edit, rows.numel())
    heads = () if edit.heads is None else (edit.heads.shape[1],)
    shape = (rows.numel(), *heads, edit.positions.shape[1], _width(anatomy, recording, edit.site, edit.layer))
    actual = tuple(edit.value.shape)
    if not _broadcasts(actual, shape):
        raise SurgeryError(
            f"the value of an edit at {edit.site}, layer {edit.layer} has shape {actual}; it must broadcast to {shape}"
        )
    if edit.where is not None and not _broadcasts(tuple(edit.where.shape), shape[:-1]):
        raise SurgeryError(
            f"the mask of an edit at {edit.site}, layer {edit.layer} has shape {tuple(edit.where.shape)}; "
            f"it must broadcast to {shape[:-1]}"
        )
    parts = anatomy.parts[min(edit.layer, anatomy.n_layers - 1)]
    if edit.scope == "group" and not parts.has_own_keys:
        edit = _of_query_heads(edit, parts)
    if edit.site == "v" and edit.scope == "head" and not anatomy.parts[parts.key_layer].v_norm:
        edit = replace(edit, site="v_seen", scope=None)
    return edit


def _of_query_heads(edit: LayerEdit, parts: LayerParts) -> LayerEdit:
    """An edit of KV groups as one of all their query heads: the layers that share the keys keep theirs."""
    assert edit.heads is not None
    members = torch.arange(parts.group)
    heads = (edit.heads[:, :, None] * parts.group + members).flatten(1)

    def spread(table: Tensor, axis: int) -> Tensor:
        is_shared = table.ndim < -axis or table.shape[axis] == 1
        return table if is_shared else table.repeat_interleave(parts.group, dim=axis)

    where = None if edit.where is None else spread(edit.where, -2)
    return replace(edit, heads=heads, value=spread(edit.value, -3), where=where, scope="head")


def _broadcasts(actual: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(actual) <= len(shape) and all(a in (1, b) for a, b in zip(actual[::-1], shape[::-1], strict=False))


def _checked_place(anatomy: Anatomy, recording: RecordedRun, target: Target, n_rows: int) -> Target:
    """Check an edit's or a read's tables of indices against the run."""
    if int(target.positions.max()) >= recording.length:
        raise SurgeryError(f"position {int(target.positions.max())} in prompts of {recording.length} tokens")
    for name, table in (("positions", target.positions), ("heads", target.heads)):
        if table is not None and table.shape[0] not in (1, n_rows):
            raise SurgeryError(f"{name} has {table.shape[0]} lines for {n_rows} rows; give one line, or one a row")
    if isinstance(target, LayerRead) and target.site in ("k", "v"):  # of the layer that computes them
        return replace(target, layer=anatomy.parts[target.layer].key_layer)
    return target


def _width(anatomy: Anatomy, recording: RecordedRun, site: Site, layer: int) -> int:
    if site in KEYED:
        return recording.length
    if site == "logits":
        return anatomy.vocabulary
    return anatomy.width(site) if site in HEADLESS else anatomy.parts[layer].head_dim


def _starts(recording: RecordedRun, edits: Sequence[LayerEdit], reaches: Sequence[Tensor], source: Tensor) -> Tensor:
    """The layer of each row's first edit that changes something and can be read; NEVER if there is none."""
    start = torch.full((source.numel(),), NEVER)
    seen = [(edit, rows) for edit, rows in zip(edits, reaches, strict=True) if bool(rows.any())]
    changes = to_cpu_together(
        [changes_recorded(recording, edit, source, touched(edit, source.numel())) for edit, _ in seen]
    )
    for (edit, reached), changed in zip(seen, changes, strict=True):
        rows = touched(edit, source.numel())
        start[rows] = torch.where(changed & reached, start[rows].clamp(max=edit.layer), start[rows])
    return start


def _window(
    recording: RecordedRun, edits: Sequence[LayerEdit], reads: Sequence[LayerRead], source: Tensor
) -> tuple[Tensor, Tensor]:
    """The first and the last position of each row that must be computed."""
    rows = torch.arange(source.numel())
    first = torch.stack([lines(read.positions, rows).amin(1) for read in reads]).amin(0)
    last = torch.stack([lines(read.positions, rows).amax(1) for read in reads]).amax(0)
    for edit in edits:
        rows = touched(edit, source.numel())
        where = lines(edit.positions, torch.arange(rows.numel()))
        first[rows] = torch.minimum(first[rows], where.amin(1))
        last[rows] = torch.maximum(last[rows], where.amax(1))
    if {edit.site for edit in edits} & KEYED or {read.site for read in reads} & KEYED:
        last[:] = recording.length - 1  # scores and patterns name keys up to the last token
    return first, last
