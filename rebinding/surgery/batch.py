"""The rows of one pass: edits and reads translated to the rows that are in it.

Raw queries, keys and values of single heads are taken through norm and RoPE as in the model.

An edit of a raw key for ONE query head changes that head's copy: a copy of the projection, then norm and RoPE.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.calling import watch_module
from rebinding.surgery.layers import LayerEdit, LayerRead
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.plan import Plan, changed_rows, touched
from rebinding.surgery.recording import RecordedRun, gather, lines
from rebinding.surgery.sites import Scope, Site, SurgeryError


@dataclass(frozen=True, eq=False)
class Placed:
    """An edit restricted to the rows of a pass: `at` are their places in the pass, `lines` their lines in the edit,
    `reached` whether a read can see them."""

    edit: LayerEdit
    at: Tensor
    lines: Tensor
    reached: Tensor


@dataclass(eq=False)
class Results:
    """The values of all reads, filled part by part, in the order of the call's rows."""

    n_rows: int
    reads: Sequence[LayerRead]
    tensors: dict[int, Tensor] = field(default_factory=dict)
    conditions: list[tuple[Tensor, str]] = field(default_factory=list)
    changes: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def require(self, condition: Tensor, message: str) -> None:
        """Note a flag that must be true, and the error message if it is not; checked at the end of the run."""
        self.conditions.append((condition.reshape(1), message))

    def note_changes(self, rows: Tensor, changed: Tensor) -> None:
        """Note for some rows whether an edit changed a value in them; checked at the end of the run."""
        self.changes.append((rows, changed))

    def changed_rows(self) -> Tensor:
        """Whether some edit changed a value, by row of the call."""
        changed = torch.zeros(self.n_rows, dtype=torch.bool)
        flags = to_cpu_together([flags for _, flags in self.changes])
        for (rows, _), flag in zip(self.changes, flags, strict=True):
            changed[rows[flag]] = True
        return changed

    def put(self, number: int, rows: Tensor, values: Tensor) -> None:
        """Keep the values of some rows for one read."""
        reduce = self.reads[number].reduce
        self.keep(number, rows, values if reduce is None else reduce(values, rows))

    def keep(self, number: int, rows: Tensor, values: Tensor) -> None:
        """Keep what was reduced of some rows for one read."""
        if number not in self.tensors:
            self.tensors[number] = values.new_empty(self.n_rows, *values.shape[1:])
        self.tensors[number][rows.to(values.device)] = values

    def ordered(self) -> list[Tensor]:
        """One tensor per read; an error if a required condition is false."""
        flags = to_cpu_together([condition for condition, _ in self.conditions])
        for flag, (_, message) in zip(flags, self.conditions, strict=True):
            if not flag:
                raise SurgeryError(message)
        return [self.tensors[number] for number in range(len(self.reads))]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that run together, sorted by start layer; each covers `width` tokens from its `first` token on.

    Where attention runs, all rows have the same window, `begin..end`.
    """

    plan: Plan
    recording: RecordedRun
    rows: Tensor
    first: Tensor
    width: int
    placed: tuple[Placed, ...]

    @property
    def begin(self) -> int:
        """The first token of the common window."""
        return int(self.first[0])

    @property
    def end(self) -> int:
        """The token after the window."""
        return self.begin + self.width

    @property
    def start(self) -> Tensor:
        """The layer at which each row starts."""
        return self.plan.start[self.rows]

    @property
    def source(self) -> Tensor:
        """The recorded prompt that each row continues."""
        return self.plan.source[self.rows]

    def active(self, layer: int) -> int:
        """How many rows (the first ones) are computed at a layer."""
        return int(torch.searchsorted(self.start, layer, right=True))

    def sites_at(self, layer: int) -> set[Site]:
        """The sites of a layer that are edited or read."""
        edited = {placed.edit.site for placed in self.placed if placed.edit.layer == layer}
        return edited | {read.site for read in self.plan.reads if read.layer == layer}

    def edits_at(self, layer: int, site: Site, *, scope: Scope = "group") -> list[Placed]:
        """Edits of one site, layer and scope, in the order in which they were listed."""
        is_per_head = scope == "head"
        edits = [placed for placed in self.placed if placed.edit.layer == layer and placed.edit.site == site]
        return [placed for placed in edits if (placed.edit.scope == "head") == is_per_head]

    def edit(self, layer: int, site: Site, value: Tensor, results: Results) -> Tensor:
        """A site's value (row, [head,] token, width) over the window, with its edits applied."""
        edits = self.edits_at(layer, site)
        if not edits:
            return value
        edited = value.clone()
        for placed in edits:
            write(edited, placed, self.first)
        self.note_changes(edits, value, edited, results)
        return edited

    def note_changes(self, edits: Sequence[Placed], before: Tensor, after: Tensor, results: Results) -> None:
        """Note in which rows the edits of a site changed it; does nothing where no-ops are allowed."""
        is_checked = bool(self.plan.must_change.any())
        for placed in edits if is_checked else ():
            index = places(placed, self.first, before.device)
            edit, mode = placed.edit, placed.edit.mode if len(edits) == 1 else "set"
            changed = changed_rows(before, after, index, site=edit.site, mode=mode, sums=self.plan.sums)
            results.note_changes(self.rows[placed.at], changed & placed.reached.to(changed.device))

    def read(self, layer: int, site: Site, value: Tensor, results: Results) -> None:
        """Store the values of the reads of one site and layer, for the active rows."""
        rows = self.rows[: value.shape[0]]
        for number, read in enumerate(self.plan.reads):
            if read.layer == layer and read.site == site:
                results.put(number, rows, self.gathered(value, read))

    def gathered(self, value: Tensor, read: LayerRead) -> Tensor:
        """The heads and positions of a read, from a value of the active rows over their windows."""
        rows = self.rows[: value.shape[0]]
        return gather(value, torch.arange(rows.numel()), read, rows, start=self.first[: rows.numel()])

    def window(self, recorded: Tensor, since: int, until: int) -> Tensor:
        """The windows (row, token, ...) of the rows `since..until` in a recorded tensor (prompt, token, ...)."""
        source, first = self.source[since:until], self.first[since:until]
        if bool((first == first[:1]).all()):  # a slice copies less
            begin = int(first[0]) if first.numel() else 0
            return recorded[source.to(recorded.device), begin : begin + self.width]
        tokens = first[:, None] + torch.arange(self.width)  # (row, token)
        return recorded[source[:, None].to(recorded.device), tokens.to(recorded.device)]


def places(placed: Placed, first: Tensor, device: torch.device) -> tuple[Tensor, ...]:
    """The cells of an edit as an index into (row, [head,] token, width) that begins at each row's `first` token."""
    at = placed.at.to(device)
    positions = (lines(placed.edit.positions, placed.lines) - first[placed.at][:, None]).to(device)  # (row, position)
    if placed.edit.heads is None:
        return at[:, None], positions
    heads = lines(placed.edit.heads, placed.lines).to(device)  # (row, head)
    return at[:, None, None], heads[:, :, None], positions[:, None, :]


def write(value: Tensor, placed: Placed, first: Tensor) -> None:
    """Write one edit into `value` in place. Its first token is `first` (row,)."""
    ranks = 3 if placed.edit.heads is None else 4
    new = of_lines(placed.edit.value.to(device=value.device, dtype=value.dtype), ranks, placed.lines)
    index = places(placed, first, value.device)
    old = value[index]
    new = old + new if placed.edit.mode == "add" else new.expand_as(old)
    if placed.edit.where is not None:
        new = torch.where(of_lines(placed.edit.where.to(value.device), ranks - 1, placed.lines)[..., None], new, old)
    value[index] = new


def of_lines(table: Tensor, ranks: int, numbers: Tensor) -> Tensor:
    """The lines of a value or a mask with these numbers, with all its axes; a single line serves all rows."""
    table = table.reshape((1,) * (ranks - table.ndim) + tuple(table.shape))
    return table[numbers.to(table.device)] if table.shape[0] > 1 else table


def make_batch(plan: Plan, recording: RecordedRun, rows: Tensor) -> Batch:
    """A batch of some rows of a plan with windows of one width. Each edit keeps the lines of rows that are in the batch
    and have started."""
    rows = rows[torch.argsort(plan.start[rows], stable=True)]
    place = torch.full((plan.n_rows,), -1)
    place[rows] = torch.arange(rows.numel())
    placed = []
    for edit, reached in zip(plan.edits, plan.reaches, strict=True):
        edited = touched(edit, plan.n_rows)
        numbers = torch.nonzero((place[edited] >= 0) & (plan.start[edited] <= edit.layer)).reshape(-1)
        if numbers.numel():
            placed.append(Placed(edit, place[edited[numbers]], numbers, reached[numbers]))
    width = int(plan.last[rows[0]] - plan.first[rows[0]]) + 1
    return Batch(plan, recording, rows, plan.first[rows], width, tuple(placed))


def fill_unchanged(plan: Plan, recording: RecordedRun, results: Results) -> None:
    """Fill the reads below a row's first change from the recording."""
    for number, read in enumerate(plan.reads):
        rows = torch.nonzero(plan.start > read.layer).reshape(-1)
        look_up = recording.lookup(read, plan.source) if rows.numel() else None
        if look_up is not None:
            results.put(number, rows, look_up(rows))


WORDS = {"q": "query", "k": "key", "v": "value"}
WRITABLE: dict[Site, Site] = {"k": "k_rot", "v": "v_seen"}
"""Raw keys and values, and the copies that query heads see of them."""


def seen_by_attention(attention: nn.Module, parts: LayerParts, site: str, raw: Tensor, call: dict[str, Any]) -> Tensor:
    """Raw queries, keys or values of all heads of a layer (row, head, token, head_dim) after their norm and RoPE."""
    norm_name = {"q": parts.q_norm, "k": parts.k_norm, "v": parts.v_norm}[site]
    norm: Any = getattr(attention, norm_name) if norm_name else None
    if site == "v":
        return raw if norm is None else normed(norm, raw)
    if parts.rotation == "complex":  # the norm comes after
        raw = _rotated(attention, parts, site, raw, call)
        return raw if norm is None else normed(norm, raw)
    raw = _rotated(attention, parts, site, raw if norm is None else normed(norm, raw), call)
    return raw * parts.query_factor if site == "q" and parts.query_factor != 1.0 else raw


def normed(norm: Any, heads: Tensor) -> Tensor:
    """Heads (row, head, token, head_dim) after their norm: of each head alone, or of all of them together.

    `forward` is called, not the module: its hooks see the model's own run only.
    """
    weight = getattr(norm, "weight", None)
    if weight is not None and weight.ndim == 2:  # one line a head: (head, head_dim)
        by_token: Tensor = norm.forward(heads.transpose(1, 2))  # (row, token, head, head_dim)
        return by_token.transpose(1, 2)
    if weight is None or weight.shape[-1] == heads.shape[-1]:
        out: Tensor = norm.forward(heads)
        return out
    together = norm.forward(heads.transpose(1, 2).flatten(2))  # (row, token, head x head_dim)
    return together.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)  # type: ignore[no-any-return]


def _rotated(attention: nn.Module, parts: LayerParts, site: str, raw: Tensor, call: dict[str, Any]) -> Tensor:
    angles = call.get("position_embeddings")
    if parts.rotation == "none" or angles is None:
        return raw
    name = "apply_rotary_emb" if parts.rotation == "complex" else "apply_rotary_pos_emb"
    function = getattr(sys.modules[type(attention).__module__], name, None)
    if function is None:
        raise SurgeryError(
            f"{type(attention).__name__} rotates in a way that is not known here: a raw {WORDS[site]} cannot be edited "
            f"for one query head alone. Edit {site}_rot instead."
        )
    if parts.rotation == "complex":  # (row, token, head, head_dim)
        by_token = raw.transpose(1, 2)
        return function(by_token, by_token, angles)[0].transpose(1, 2)  # type: ignore[no-any-return]
    cos, sin = angles
    width = cos.shape[-1] * (2 if parts.rotation == "half" else 1)
    turned, rest = raw[..., :width], raw[..., width:]
    if parts.rotation == "single":
        out = function(turned, cos, sin)
    else:
        out = function(turned, turned, cos, sin)[0 if site == "q" else 1]
    return torch.cat([out, rest], dim=-1) if rest.shape[-1] else out


def spans_heads(attention: nn.Module, parts: LayerParts, site: str) -> bool:
    """Whether the norm of a site mixes heads, so that no head has a raw vector of its own."""
    name = {"q": parts.q_norm, "k": parts.k_norm, "v": parts.v_norm}[site]
    weight = getattr(getattr(attention, name), "weight", None) if name else None
    return weight is not None and weight.shape[-1] != parts.head_dim


@dataclass(frozen=True, eq=False)
class RawHeads:
    """Raw keys and values in a replay, of layers whose heads' own copies are edited: there, or in a layer above that
    reuses them. `values[layer, site]` is (row, kv head, token, head_dim)."""

    anatomy: Anatomy
    batch: Batch
    values: dict[tuple[int, Site], Tensor] = field(default_factory=dict)

    @cached_property
    def needed(self) -> frozenset[tuple[int, Site]]:
        """The layers whose raw keys or values some edit of a head's copy needs."""
        edits = (placed.edit for placed in self.batch.placed if placed.edit.scope == "head")
        return frozenset((self.anatomy.parts[edit.layer].key_layer, edit.site) for edit in edits)

    def watch(self, hooks: ExitStack, layer: nn.Module, parts: LayerParts) -> None:
        """Keep what the layer's projections put out, where it is needed."""
        for site in WRITABLE:
            if (parts.number, site) in self.needed:
                path, end = parts.module_of(site)
                watch_module(hooks, layer, path, end, partial(self._keep, parts, site))

    def _keep(self, parts: LayerParts, site: Site, value: Any) -> None:
        self.values[parts.number, site] = parts.projection(site).heads(value, parts.head_dim)

    def of_rows(self, layer: int, site: Site, source: Tensor) -> Tensor:
        """Those of rows that continue prompts `source`; of rows that started above the layer, as recorded."""
        known = self.values.get((layer, site))
        count = 0 if known is None else known.shape[0]
        if known is not None and count == len(source):
            return known
        recorded = self.batch.recording.sites[f"shared_{site}"][layer]
        rest = recorded[source[count:].to(recorded.device), :, self.batch.begin : self.batch.end]
        return rest if known is None else torch.cat([known.to(rest), rest])


def rewritten(
    layers: nn.ModuleList,
    raw: RawHeads,
    parts: LayerParts,
    site: Site,
    call: dict[str, Any],
    results: Results,
) -> Callable[[Tensor], Tensor] | None:
    """A function that puts edited raw keys or values into those that single query heads see; None without such edits.

    It first takes the unedited raw keys along the same path and compares the result with the model's own keys: an
    architecture that does more between projection and attention is refused rather than edited inexactly. The outcome is
    checked at the end of the run, so no layer waits for it.
    """
    batch, key_parts = raw.batch, raw.anatomy.parts[parts.key_layer]
    edits = batch.edits_at(parts.number, site, scope="head")
    if not edits:
        return None
    attention, what, copy = layers[parts.key_layer].get_submodule(key_parts.attention), WORDS[site], WRITABLE[site]
    if spans_heads(attention, key_parts, site):
        raise SurgeryError(
            f"{type(attention).__name__} normalises all heads together: a raw {what} cannot be edited for one "
            f"query head alone. Edit {copy} instead, or use scope='group'."
        )

    def transform(per_head: Tensor) -> Tensor:
        """Copies of query heads (row, head, token, head_dim) through norm and RoPE, each as its KV head's."""
        members = per_head.unflatten(1, (-1, parts.group)).transpose(1, 2)  # (row, member, kv head, token, head_dim)
        rows = [seen_by_attention(attention, key_parts, site, member, call) for member in members.unbind(1)]
        return torch.stack(rows, dim=2).flatten(1, 2)

    def rewrite(seen: Tensor) -> Tensor:
        own = raw.of_rows(parts.key_layer, site, batch.source[: seen.shape[0]])
        per_head = own.repeat_interleave(parts.group, dim=1)  # (row, head, token, head_dim)
        rounding = 8 * torch.finfo(seen.dtype).eps * seen.abs().max()
        results.require(
            (transform(per_head) - seen).abs().max() <= rounding,
            f"{type(attention).__name__} does more to a {what} than norm and RoPE: edit {copy} instead of the raw "
            f"{what}",
        )
        touched = torch.zeros_like(per_head, dtype=torch.bool)
        before = (
            per_head.clone() if bool(batch.plan.must_change.any()) else per_head
        )  # compared only where no-ops are errors
        for placed in edits:
            write(per_head, placed, batch.first)
            touched[places(placed, batch.first, touched.device)] = True
        batch.note_changes(edits, before, per_head, results)
        return torch.where(touched, transform(per_head), seen)

    return rewrite
