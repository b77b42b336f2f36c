"""A recorded run of some prompts, and edited runs that continue it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.api.edits import (
    Edit,
    Read,
    check_layer,
    head_list,
    heads_by_layer,
    surgery_edits,
    table_of,
)
from rebinding.api.prompts import Prompts
from rebinding.experiments.tokens import logits_of
from rebinding.surgery import Recording as SurgeryRecording
from rebinding.surgery import sites as surgery
from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.sites import HEADLESS, Attention

if TYPE_CHECKING:
    from rebinding.api.model import Model


@dataclass(frozen=True, eq=False)
class Recording:
    """An unedited run of a model over prompts; edited runs continue it and compute only what the edits change."""

    model: Model
    prompts: Prompts
    recorded: SurgeryRecording

    def read(self, *reads: Read) -> list[Tensor]:
        """The values of the unedited run, one tensor for each read."""
        return self.run([], *reads)

    def run(
        self, edits: Edit | Sequence[Edit], *reads: Read, attention: Attention = "live", allow_noop: bool = False
    ) -> list[Tensor]:
        """Run every prompt with all edits together; one tensor for each read, prompts first.

        Edits that change nothing that is read raise `NothingEdited`, unless `allow_noop`. With `attention="frozen"`
        every head keeps its recorded output, except where an edit writes it; MLPs and norms are recomputed.
        """
        together = [edits] if isinstance(edits, Edit) else list(edits)
        return [values[0] for values in self._run([together], reads, attention, allow_noop)]

    def run_each(
        self,
        edits: Sequence[Edit | Sequence[Edit]],
        *reads: Read,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """Run every prompt once for each entry of `edits`, all in one batch: (entry, prompt, ...) for each read.

        An entry is an edit, or a list of edits that act together.
        """
        if not edits:
            raise SurgeryError("no edits given; run_each needs at least one entry")
        entries = [[entry] if isinstance(entry, Edit) else list(entry) for entry in edits]
        return self._run(entries, reads, attention, allow_noop)

    def _run(
        self, entries: Sequence[Sequence[Edit]], reads: Sequence[Read], attention: Attention, allow_noop: bool
    ) -> list[Tensor]:
        n = len(self.prompts)
        every = torch.arange(n)
        source = every.repeat(len(entries))  # (row,): entries one after the other, each with all prompts
        orders = [
            edit
            for number, entry in enumerate(entries)
            for own in entry
            for edit in surgery_edits(own, self, every + number * n)
        ]
        requests = [surgery_read(read, self, source) for read in reads]
        values = self.model.surgeon.run(
            self.recorded, orders, [request for parts in requests for request in parts],
            source=source, attention=attention, allow_noop=allow_noop or not orders,
        )  # fmt: skip
        remaining = iter(values)
        results = []
        for read, parts in zip(reads, requests, strict=True):
            columns = [next(remaining) for _ in parts]
            results.append(_in_order(read, columns).unflatten(0, (len(entries), n)))
        return results

    def value_for(self, edit: Edit, layer: int, heads: list[int] | None, target: Recording) -> Tensor:
        """What this recording has at the site of an edit of another recording."""
        if self.model is not target.model:
            raise SurgeryError(
                f"the value comes from a recording of {self.model.name}, and the run is of {target.model.name}; the"
                " values of one model mean nothing in another. Record the prompts with the same model object"
            )
        if len(self.prompts) != len(target.prompts):
            raise SurgeryError(
                f"the value comes from a recording of {len(self.prompts)} prompts, and the run has"
                f" {len(target.prompts)}; prompt by prompt, both need equally many"
            )
        if edit.scope == "head" and heads is not None:
            heads = [self.model.anatomy.kv_head(head) for head in heads]
        if heads is not None and len(set(heads)) < len(heads):  # two query heads of one KV head see the same keys
            return torch.cat([self._site(edit, layer, [head]) for head in heads], dim=1)
        return self._site(edit, layer, heads)

    def _site(self, edit: Edit, layer: int, heads: list[int] | None) -> Tensor:
        positions = table_of(self.prompts, edit.at)
        (value,) = self.model.surgeon.run(
            self.recorded, [], [surgery.Read(edit.site, layer, positions=positions, heads=heads)]
        )
        return value


def surgery_read(read: Read, recording: Recording, source: Tensor) -> list[surgery.Read]:
    """A read, layer by layer, of rows that continue recorded prompts (row,)."""
    positions = table_of(recording.prompts, read.at)[source]  # (row, position)
    if read.site == "answers":
        answers = recording.prompts.candidates()
        return [surgery.Read("logits", positions=positions, reduce=logits_of(answers[source]))]
    if read.site == "logits":
        return [surgery.Read("logits", positions=positions)]
    if read.site in HEADLESS:
        assert read.layer is not None
        check_layer(read.layer, recording.model.anatomy, read.site)
        return [surgery.Read(read.site, read.layer, positions=positions)]
    assert read.head is not None
    by_layer = heads_by_layer(head_list(read.head), recording.model.anatomy, read.site, None)
    return [surgery.Read(read.site, layer, positions=positions, heads=heads) for layer, heads in by_layer.items()]


def _in_order(read: Read, columns: Sequence[Tensor]) -> Tensor:
    """The parts of a read as one tensor, heads in the order in which they were given, without axes of length 1 for a
    single head or position."""
    if read.head is None:
        value = columns[0]  # (row, position, width)
    else:
        heads = head_list(read.head)
        layers = list(dict.fromkeys(layer for layer, _ in heads))
        order = sorted(range(len(heads)), key=lambda place: layers.index(heads[place][0]))
        joined = torch.cat([column.to(columns[0].device) for column in columns], dim=1)
        value = joined[:, torch.argsort(torch.tensor(order))]  # (row, head, position, width)
    if isinstance(read.at, (str, int)):
        value = value.squeeze(-2)
    if read.head is not None and isinstance(read.head[0], int):
        value = value.squeeze(1)
    return value
