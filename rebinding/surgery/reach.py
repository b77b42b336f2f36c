"""Which rows of an edit can reach a read, before anything is computed.

An edit is seen where its value goes: to the sites that are computed from it in its own layer, to the residual stream of
the next layer, and from there to everything above. Within a layer a value stays at its own head and, unless keys or
values carry it on, at its own position. A read anywhere else gives the unedited value, whatever the edit writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.recording import lines
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
    if not _is_above(edit, read, attention):
        return torch.zeros(rows.numel(), dtype=torch.bool)
    written = lines(edit.positions, torch.arange(rows.numel()))  # (row, position)
    wanted = lines(read.positions, rows)  # (row, position)
    if _spreads(edit, read, attention):
        seen = written.amin(1) <= wanted.amax(1)
    else:
        seen = (written[:, :, None] == wanted[:, None, :]).flatten(1).any(dim=1)
    if is_same_layer and edit.heads is not None and read.heads is not None:
        own = _query_heads(anatomy, edit.heads, torch.arange(rows.numel()), edit.site, edit.scope)
        seen = seen & (own & _query_heads(anatomy, read.heads, rows, read.site, "group")).any(dim=1)
    return seen


def _is_above(edit: Edit, read: Read, attention: Attention) -> bool:
    """Whether the read is computed from what the edit writes, at some head and position."""
    if edit.layer > read.layer or (edit.layer == read.layer and read.site not in FEEDS[edit.site]):
        return False
    if edit.scope == "head" and (read.layer, read.site) == (edit.layer, edit.site):
        return False  # the group's own key stays as it is
    is_held = attention == "frozen" and read.site == "z"
    return not is_held or (edit.layer == read.layer and edit.site == "z")


def _spreads(edit: Edit, read: Read, attention: Attention) -> bool:
    """Whether the read sees the edit from later positions too."""
    gathers = read.site in (KEYED if attention == "frozen" else _FROM_SCORES)  # z is held where attention is frozen
    if edit.layer == read.layer:
        return gathers and edit.site in SEEN_LATER
    if attention == "frozen":
        return gathers
    return gathers or edit.site in SEEN_LATER or read.layer > edit.layer + 1


def _query_heads(anatomy: Anatomy, heads: Tensor, rows: Tensor, site: Site, scope: str | None) -> Tensor:
    """The query heads that an edit or a read names, as flags (row, head); a KV head stands for its whole group."""
    is_grouped = site in ("k", "v") and scope == "group"
    flags = torch.zeros(rows.numel(), anatomy.n_kv_heads if is_grouped else anatomy.n_heads, dtype=torch.bool)
    flags.scatter_(1, lines(heads, rows), True)
    return flags.repeat_interleave(anatomy.group, dim=1) if is_grouped else flags
