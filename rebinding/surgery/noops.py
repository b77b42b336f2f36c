"""No-op edits: those that no read can see, and those that write the value that is already there.

**Reach** is known before anything is computed. An edit is seen where its value goes: to the sites that are computed
from it in its own layer, to the residual stream of the next layer, and from there to everything above. Within a layer a
value stays at its own head and, unless keys or values carry it on, at its own position. A read anywhere else gives the
unedited value, whatever the edit writes.

**Change** is measured. A value that is read in one run and written back in another equals the unedited value only up to
rounding: the two runs multiply matrices of other shapes. So `set` changes a value where the difference is larger than
rounding. `add` is relative to the value of the same run, and changes it as soon as one bit differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.checks import NothingEdited
from rebinding.surgery.parts import LayerParts
from rebinding.surgery.recording import Recording, gather, lines
from rebinding.surgery.sites import KEYED, SITES, Attention, Edit, Read, Site

_FROM_SCORES: frozenset[Site] = frozenset({"scores", "pattern", "z", "mlp_out"})
_FROM_VALUES: frozenset[Site] = frozenset({"v_seen", "z", "mlp_out"})

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
    "z": frozenset({"z", "mlp_out"}),
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


def reaching_rows(anatomy: Anatomy, edit: Edit, reads: Sequence[Read], rows: Tensor, attention: Attention) -> Tensor:
    """For each row that an edit names, whether some read can see the edit; best called with the highest reads first."""
    seen = torch.zeros(rows.numel(), dtype=torch.bool)
    for read in reads:
        if bool(seen.all()):
            break
        seen = seen | _seen_by(anatomy, edit, read, rows, attention)
    return seen


def _seen_by(anatomy: Anatomy, edit: Edit, read: Read, rows: Tensor, attention: Attention) -> Tensor:
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


def _is_above(edit: Edit, read: Read, attention: Attention) -> bool:
    """Whether the read is computed from what the edit writes, at some head and position."""
    if edit.layer > read.layer or (edit.layer == read.layer and read.site not in FEEDS[edit.site]):
        return False
    if edit.scope == "head" and (read.layer, read.site) == (edit.layer, edit.site):
        return False  # the group's own key stays as it is
    is_held = attention == "frozen" and read.site == "z"
    return not is_held or (edit.layer == read.layer and edit.site == "z")


def _is_from_below(anatomy: Anatomy, edit: Edit, read: Read) -> bool:
    """Whether the read is of keys or values that a layer below the edit computed."""
    if read.site not in ("k_rot", "v_seen") or (edit.layer == read.layer and edit.site in ("k", "v", read.site)):
        return False
    key_layer = anatomy.parts[read.layer].key_layer
    feeds = edit.site in FEEDS_KEYS and edit.scope != "head"
    return key_layer < edit.layer or (key_layer == edit.layer < read.layer and not feeds)


def _spreads(edit: Edit, read: Read, attention: Attention) -> bool:
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


def changes_recorded(recording: Recording, edit: Edit, source: Tensor, rows: Tensor) -> Tensor:
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
    places = Read(edit.site, edit.layer, positions=edit.positions, heads=edit.heads)
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
