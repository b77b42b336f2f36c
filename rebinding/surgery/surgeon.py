"""A surgeon records unedited runs of a model and runs edited ones that continue them.

Experiments use this interface and run on either implementation, `TorchSurgeon` or `NNsightSurgeon`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.layers import LayerEdit, LayerRead, join_read, split_edit, split_read
from rebinding.surgery.recording import RecordedRun
from rebinding.surgery.sites import Attention, Edit, LogitsOf, Read, Reduce, Site, SurgeryError, checked_source

Variant: TypeAlias = Sequence[Edit]
"""The edits of one run of all prompts; without any it is the unedited run."""


class Surgeon(ABC):
    """Records unedited runs, and runs batches of edited ones that continue them."""

    anatomy: Anatomy

    @abstractmethod
    def prompts_at_once(self, length: int) -> int:
        """How many prompts of `length` tokens to record and edit together."""

    @abstractmethod
    def record(self, tokens: Tensor, *, keep: Collection[Site] = ()) -> RecordedRun:
        """Run prompts (prompt, token) unedited; record what later runs start from, and the sites to `keep`.

        Runs with attention frozen need `keep={"z"}`.
        """

    @abstractmethod
    def with_reads(self, recording: RecordedRun, reads: Sequence[Read]) -> RecordedRun:
        """The recording with unedited reads added; a surgeon that gains nothing from them may return it as it is."""

    @abstractmethod
    def run_by_layer(
        self,
        recording: RecordedRun,
        edits: Sequence[LayerEdit],
        reads: Sequence[LayerRead],
        *,
        source: Tensor | None = None,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """`run`, for edits and reads that are split by layers."""

    def run(
        self,
        recording: RecordedRun,
        edits: Sequence[Edit],
        reads: Sequence[Read],
        *,
        source: Tensor | None = None,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """Run a batch whose row `r` is the recorded prompt `source[r]` with the edits that name row `r`.

        Returns one tensor per read, rows first. Rows whose edits together change nothing that is read raise
        `NothingEdited`, at every site and whatever was recorded, unless `allow_noop`. With `attention="frozen"` every
        head's z is held at its recorded value, except where an edit writes z; MLPs and norms are recomputed.
        """
        values = self.sweep(recording, [edits], reads, source=source, attention=attention, allow_noop=allow_noop)
        return [value[0] for value in values]

    def sweep(
        self,
        recording: RecordedRun,
        variants: Sequence[Variant],
        reads: Sequence[Read],
        *,
        source: Tensor | None = None,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """Run every prompt under every variant, in one batch: (variant, prompt, ...) for each read.

        Edits and reads say what they do to the prompts: row n is the recorded prompt `source[n]`, by default prompt n.
        A row that no edit of a variant names is unedited there.
        """
        if not len(variants):
            raise SurgeryError("no variants to run; a variant is a list of edits, empty for the unedited run")
        source = checked_source(source, recording.n_prompts)
        n, copies = source.numel(), len(variants)
        parts = [split_read(self.anatomy, read, recording.length) for read in reads]
        values = iter(
            self.run_by_layer(
                recording,
                _joined(self.anatomy, recording.length, variants, n),
                [_repeated(part, copies, n) for own in parts for part in own],
                source=source.repeat(copies),
                attention=attention,
                allow_noop=allow_noop,
            )
        )
        together = [join_read(read, [next(values) for _ in own]) for read, own in zip(reads, parts, strict=True)]
        return [value.unflatten(0, (copies, n)) for value in together]


def _joined(anatomy: Anatomy, length: int, variants: Sequence[Variant], n: int) -> list[LayerEdit]:
    """The edits of all variants, numbered by rows of the batch. Those that differ in values alone are one edit: a plan
    looks at each edit once. Edits of one site keep their order, since the first of these come before all second ones.
    """
    split = [[part for edit in variant for part in split_edit(anatomy, edit, length)] for variant in variants]
    if len(split) == 1:
        return split[0]
    alike: dict[tuple[Any, ...], list[tuple[LayerEdit, Tensor]]] = {}
    for number, edits in enumerate(split):
        counts = Counter[tuple[Site, int]]()
        for edit in edits:
            counts[edit.site, edit.layer] += 1
            rows = torch.arange(n) if edit.rows is None else edit.rows
            key = counts[edit.site, edit.layer], *(_kind(edit, len(rows)) or (number, id(edit)))
            alike.setdefault(key, []).append((edit, rows + number * n))
    return [_join(alike[key]) for key in sorted(alike, key=lambda key: key[0])]


def _kind(edit: LayerEdit, n_rows: int) -> tuple[object, ...] | None:
    """All but the values and positions of an edit; None if it has no value of its own in every row."""
    value, has_table = edit.value, edit.heads is not None and len(edit.heads) > 1
    if edit.where is not None or has_table or value.ndim < 3 or len(value) != n_rows:
        return None
    heads = None if edit.heads is None else tuple(edit.heads[0].tolist())
    shape = *value.shape[1:], value.dtype, value.device, edit.positions.shape[1]
    return edit.site, edit.layer, edit.mode, edit.scope, heads, shape


def _join(parts: Sequence[tuple[LayerEdit, Tensor]]) -> LayerEdit:
    """One edit of all rows of several that differ in values and positions alone."""
    first, rows = parts[0][0], torch.cat([rows for _, rows in parts])
    if len(parts) == 1:
        return replace(first, rows=rows)
    value = torch.cat([edit.value for edit, _ in parts])
    positions = torch.cat([edit.positions.expand(len(of_edit), -1) for edit, of_edit in parts])
    return replace(first, value=value, positions=positions, rows=rows)


def _repeated(read: LayerRead, copies: int, n: int) -> LayerRead:
    """A read of n rows as one of `copies` times as many."""
    positions, heads = read.positions, read.heads
    positions = positions.repeat(copies, 1) if len(positions) > 1 else positions
    heads = heads.repeat(copies, 1) if heads is not None and len(heads) > 1 else heads
    return replace(read, positions=positions, heads=heads, reduce=_for_copies(read.reduce, copies, n))


def _for_copies(reduce: Reduce | None, copies: int, n: int) -> Reduce | None:
    """A reduction for the rows of all copies, from one for the rows of the prompts."""
    if reduce is None or copies == 1:
        return reduce
    if isinstance(reduce, LogitsOf):
        return LogitsOf(reduce.tokens.repeat(copies, 1))
    return lambda values, rows: reduce(values, rows % n)
