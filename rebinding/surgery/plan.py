"""The plan of a run, made before anything is computed: which rows can change, from which layer, at which tokens.

By causality an edit at layer `l`, position `p` leaves layers below `l` and positions before `p` as recorded. A row
whose edits cannot reach a read (`rebinding.surgery.noops`), or write what was recorded, is a no-op: its reads are those
of the unedited run and it is not computed. Where a site was not recorded, only the run shows a no-op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.checks import SurgeryError, check_word, checked_source
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.noops import changes_recorded, check_changed, reaching_rows, rounding_of_sums
from rebinding.surgery.parts import LayerParts
from rebinding.surgery.recording import Recording, lines
from rebinding.surgery.sites import ATTENTIONS, HEADLESS, KEYED, SITES, Attention, Edit, Read, Site

STAGES: tuple[tuple[Site, ...], ...] = (
    ("resid",),
    ("q", "k", "v"),
    ("q_rot", "k_rot", "v_seen"),
    *(("scores",), ("pattern",), ("z",), ("mlp_out",), ("logits",)),
)
ORDER: dict[Site, int] = {site: number for number, sites in enumerate(STAGES) for site in sites}
NEVER = 1 << 30
"""The start layer of a no-op row."""

Target = TypeVar("Target", Edit, Read)
FREEZABLE: frozenset[Site] = frozenset({"resid", "z", "mlp_out", "logits"})
assert set(ORDER) == set(SITES)


@dataclass(frozen=True, eq=False)
class Plan:
    """Edits and reads of one call, checked, and for every row the layer and the tokens that it can change.

    `reaches` says for each edit which of its rows a read can see. `must_change` are the rows (row,) that an edit names:
    each has to change by more than the rounding of `sums` (`rebinding.surgery.noops`). It is empty where no-ops are
    allowed.
    """

    edits: tuple[Edit, ...]
    reads: tuple[Read, ...]
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


def touched(edit: Edit, n_rows: int) -> Tensor:
    """The rows that an edit names."""
    return torch.arange(n_rows) if edit.rows is None else edit.rows


def make_plan(
    anatomy: Anatomy,
    recording: Recording,
    edits: Sequence[Edit],
    reads: Sequence[Read],
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
    checked_reads = tuple(
        _checked_place(anatomy, recording, read, source.numel(), grouped=read.site in ("k", "v")) for read in reads
    )
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


def _checked_edit(anatomy: Anatomy, recording: Recording, edit: Edit, source: Tensor, attention: Attention) -> Edit:
    if attention == "frozen" and edit.site not in FREEZABLE:
        raise SurgeryError(
            f"an edit of {edit.site} cannot act while attention is frozen: z is held at its recorded value. "
            "Edit z itself, or run with attention='live'."
        )
    rows = touched(edit, source.numel())
    if int(rows.max()) >= source.numel():
        raise SurgeryError(f"an edit names row {int(rows.max())}; the batch has rows 0..{source.numel() - 1}")
    edit = _checked_place(anatomy, recording, edit, rows.numel(), grouped=edit.scope == "group")
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
        edit = _with(edit, site="v_seen", scope=None)
    return edit


def _of_query_heads(edit: Edit, parts: LayerParts) -> Edit:
    """An edit of KV groups as one of all their query heads: the layers that share the keys keep theirs."""
    assert edit.heads is not None
    members = torch.arange(parts.group)
    heads = (edit.heads[:, :, None] * parts.group + members).flatten(1)

    def spread(table: Tensor | None, axis: int) -> Tensor | None:
        if table is None or table.ndim < -axis or table.shape[axis] == 1:
            return table
        return table.repeat_interleave(parts.group, dim=axis)

    return _with(edit, heads=heads, value=spread(edit.value, -3), where=spread(edit.where, -2), scope="head")


def _broadcasts(actual: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(actual) <= len(shape) and all(a in (1, b) for a, b in zip(actual[::-1], shape[::-1], strict=False))


def _with(target: Target, **changes: object) -> Target:
    copy = object.__new__(type(target))
    copy.__dict__.update(vars(target) | changes)
    return copy


def _checked_place(anatomy: Anatomy, recording: Recording, target: Target, n_rows: int, *, grouped: bool) -> Target:
    """Check an edit's or a read's layer, positions and heads against the model. Logits are above its last layer."""
    target = _with(target, layer=anatomy.n_layers) if target.site == "logits" else target
    site, layer, positions, heads = target.site, target.layer, target.positions, target.heads
    last = anatomy.n_layers if site in ("resid", "logits") else anatomy.n_layers - 1
    if not 0 <= layer <= last:
        raise SurgeryError(f"{site} exists at layers 0..{last}; got layer {layer}")
    if int(positions.max()) >= recording.length:
        raise SurgeryError(f"position {int(positions.max())} in prompts of {recording.length} tokens")
    if site not in HEADLESS:
        _check_heads(anatomy.parts[layer], site)
    count = 0 if heads is None else anatomy.parts[layer].n_kv_heads if grouped else anatomy.parts[layer].n_heads
    if heads is not None and int(heads.max()) >= count:
        kind = "KV heads" if grouped else "query heads"
        raise SurgeryError(f"{site} counts {kind}, 0..{count - 1}; got head {int(heads.max())}")
    if isinstance(target, Read) and site in ("k", "v"):  # of the layer that computes them
        target = _with(target, layer=anatomy.parts[layer].key_layer)
    for name, table in (("positions", positions), ("heads", heads)):
        if table is not None and table.shape[0] not in (1, n_rows):
            raise SurgeryError(f"{name} has {table.shape[0]} lines for {n_rows} rows; give one line, or one a row")
    return target


def _check_heads(parts: LayerParts, site: Site) -> None:
    """Refuse a site that a layer lacks."""
    if parts.n_heads == 0:
        raise SurgeryError(
            f"layer {parts.number} has no attention heads and so no {site}: its {parts.mixer} carries a state from "
            "token to token. Layers with heads are listed by anatomy.heads"
        )


def _width(anatomy: Anatomy, recording: Recording, site: Site, layer: int) -> int:
    if site in KEYED:
        return recording.length
    if site == "logits":
        return anatomy.vocabulary
    return anatomy.width(site) if site in HEADLESS else anatomy.parts[layer].head_dim


def _starts(recording: Recording, edits: Sequence[Edit], reaches: Sequence[Tensor], source: Tensor) -> Tensor:
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
    recording: Recording, edits: Sequence[Edit], reads: Sequence[Read], source: Tensor
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
