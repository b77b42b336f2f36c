"""The rows of one pass: edits and reads translated to the rows that are in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.noops import changed_rows
from rebinding.surgery.plan import Plan, touched
from rebinding.surgery.recording import Recording, gather, lines
from rebinding.surgery.sites import Edit, Read, Scope, Site


@dataclass(frozen=True, eq=False)
class Placed:
    """An edit's lines for the rows of a pass: `at` are places in the pass, `lines` lines of the edit, `reached` whether
    a read can see them."""

    edit: Edit
    at: Tensor
    lines: Tensor
    reached: Tensor


@dataclass(eq=False)
class Results:
    """What the reads return, filled part by part in the order of the call's rows."""

    n_rows: int
    reads: Sequence[Read]
    tensors: dict[int, Tensor] = field(default_factory=dict)
    conditions: list[tuple[Tensor, str]] = field(default_factory=list)
    changes: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def must_hold(self, condition: Tensor, otherwise: str) -> None:
        """Note a flag that is to be true, and what is wrong if it is not; it is looked at when the run is over."""
        self.conditions.append((condition.reshape(1), otherwise))

    def note_changes(self, rows: Tensor, changed: Tensor) -> None:
        """Note of some rows whether an edit changed a value in them; looked at when the run is over."""
        self.changes.append((rows, changed))

    def changed_rows(self) -> Tensor:
        """Whether some edit changed a value, by row of the call."""
        changed = torch.zeros(self.n_rows, dtype=torch.bool)
        flags = to_cpu_together([flags for _, flags in self.changes])
        for (rows, _), here in zip(self.changes, flags, strict=True):
            changed[rows[here]] = True
        return changed

    def put(self, number: int, rows: Tensor, values: Tensor) -> None:
        """Keep the values of some rows for one read."""
        take = self.reads[number].take
        values = values if take is None else take(values, rows)
        if number not in self.tensors:
            self.tensors[number] = values.new_empty(self.n_rows, *values.shape[1:])
        self.tensors[number][rows.to(values.device)] = values

    def ordered(self) -> list[Tensor]:
        """One tensor per read; an error if something did not hold."""
        flags = to_cpu_together([condition for condition, _ in self.conditions])
        for flag, (_, otherwise) in zip(flags, self.conditions, strict=True):
            if not flag:
                raise SurgeryError(otherwise)
        return [self.tensors[number] for number in range(len(self.reads))]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that run together, sorted by the layer at which they start, each over `width` tokens from its `first` on.

    Where tokens talk to one another all rows have the same window, `begin..end`.
    """

    plan: Plan
    recording: Recording
    rows: Tensor
    first: Tensor
    width: int
    placed: tuple[Placed, ...]

    @property
    def begin(self) -> int:
        """The first token of the window that all rows have."""
        return int(self.first[0])

    @property
    def end(self) -> int:
        """The token behind it."""
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
        edited = {one.edit.site for one in self.placed if one.edit.layer == layer}
        return edited | {read.site for read in self.plan.reads if read.layer == layer}

    def edits_at(self, layer: int, site: Site, *, scope: Scope = "group") -> list[Placed]:
        """Edits of one site and layer, in the order in which they were listed; single heads' copies apart."""
        alone = scope == "head"
        here = [one for one in self.placed if one.edit.layer == layer and one.edit.site == site]
        return [one for one in here if (one.edit.scope == "head") == alone]

    def edit(self, layer: int, site: Site, value: Tensor, results: Results) -> Tensor:
        """A site's value (row, [head,] token, width) over the window, with the edits that stand there."""
        edits = self.edits_at(layer, site)
        if not edits:
            return value
        edited = value.clone()
        for one in edits:
            write(edited, one, self.first)
        self.note_changes(edits, value, edited, results)
        return edited

    def note_changes(self, edits: Sequence[Placed], before: Tensor, after: Tensor, results: Results) -> None:
        """Note in which rows the edits of a site changed it; nothing to do where no-ops are allowed."""
        is_checked = bool(self.plan.must_change.any())
        for placed in edits if is_checked else ():
            index = places(placed, self.first, before.device)
            edit, mode = placed.edit, placed.edit.mode if len(edits) == 1 else "set"
            changed = changed_rows(before, after, index, site=edit.site, mode=mode, sums=self.plan.sums)
            results.note_changes(self.rows[placed.at], changed & placed.reached.to(changed.device))

    def read(self, layer: int, site: Site, value: Tensor, results: Results) -> None:
        """Give the reads of one site and layer their values for the active rows."""
        rows = self.rows[: value.shape[0]]
        for number, read in enumerate(self.plan.reads):
            if read.layer == layer and read.site == site:
                results.put(number, rows, self.gathered(value, read))

    def gathered(self, value: Tensor, read: Read) -> Tensor:
        """What a read names of a value of the active rows over their windows."""
        rows = self.rows[: value.shape[0]]
        return gather(value, torch.arange(rows.numel()), read, rows, start=self.first[: rows.numel()])

    def window(self, recorded: Tensor, since: int, until: int) -> Tensor:
        """The windows (row, token, ...) of the rows `since..until` in a recorded tensor (prompt, token, ...)."""
        source, first = self.source[since:until], self.first[since:until]
        if bool((first == first[:1]).all()):  # a slice, which copies less
            begin = int(first[0]) if first.numel() else 0
            return recorded[source.to(recorded.device), begin : begin + self.width]
        tokens = first[:, None] + torch.arange(self.width)  # (row, token)
        return recorded[source[:, None].to(recorded.device), tokens.to(recorded.device)]


def places(one: Placed, first: Tensor, device: torch.device) -> tuple[Tensor, ...]:
    """Where an edit writes, as an index into (row, [head,] token, width) whose first token is each row's `first`."""
    at = one.at.to(device)
    positions = (lines(one.edit.positions, one.lines) - first[one.at][:, None]).to(device)  # (row, position)
    if one.edit.heads is None:
        return at[:, None], positions
    heads = lines(one.edit.heads, one.lines).to(device)  # (row, head)
    return at[:, None, None], heads[:, :, None], positions[:, None, :]


def write(value: Tensor, one: Placed, first: Tensor) -> None:
    """Write one edit into `value`, which is the caller's own copy and whose first token is `first` (row,)."""
    ranks = 3 if one.edit.heads is None else 4
    new = of_lines(one.edit.value.to(device=value.device, dtype=value.dtype), ranks, one.lines)
    index = places(one, first, value.device)
    old = value[index]
    new = old + new if one.edit.mode == "add" else new.expand_as(old)
    if one.edit.where is not None:
        new = torch.where(of_lines(one.edit.where.to(value.device), ranks - 1, one.lines)[..., None], new, old)
    value[index] = new


def of_lines(table: Tensor, ranks: int, wanted: Tensor) -> Tensor:
    """The lines of a value or a mask that belong to some rows, with all its axes; one line serves all."""
    table = table.reshape((1,) * (ranks - table.ndim) + tuple(table.shape))
    return table[wanted.to(table.device)] if table.shape[0] > 1 else table


def make_batch(plan: Plan, recording: Recording, rows: Tensor) -> Batch:
    """A batch of some rows of a plan, whose windows are equally wide; every edit keeps the lines whose rows are in it
    and have started."""
    rows = rows[torch.argsort(plan.start[rows], stable=True)]
    place = torch.full((plan.n_rows,), -1)
    place[rows] = torch.arange(rows.numel())
    placed = []
    for edit, reached in zip(plan.edits, plan.reaches, strict=True):
        named = touched(edit, plan.n_rows)
        kept = torch.nonzero((place[named] >= 0) & (plan.start[named] <= edit.layer)).reshape(-1)
        if kept.numel():
            placed.append(Placed(edit, place[named[kept]], kept, reached[kept]))
    width = int(plan.last[rows[0]] - plan.first[rows[0]]) + 1
    return Batch(plan, recording, rows, plan.first[rows], width, tuple(placed))


def look_up_still(plan: Plan, recording: Recording, results: Results) -> None:
    """Fill the reads that lie below a row's first change from the recording."""
    for number, read in enumerate(plan.reads):
        rows = torch.nonzero(plan.start > read.layer).reshape(-1)
        finds = recording.finds(read, plan.source) if rows.numel() else None
        if finds is not None:
            results.put(number, rows, finds(rows))
