"""A recorded run of some prompts, and edited runs that continue it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor

from rebinding.api.conflicts import check_entry
from rebinding.api.edits import (
    Edit,
    Head,
    Read,
    head_list,
    heads_by_layer,
    is_one_head,
    is_one_position,
    layer_of,
    surgery_edits,
    table_of,
)
from rebinding.api.prompts import Prompts
from rebinding.surgery import NothingEdited
from rebinding.surgery import sites as surgery
from rebinding.surgery.calling import Weights, hold
from rebinding.surgery.sites import HEADLESS, Attention, SurgeryError
from rebinding.surgery.sweep import join_heads, sweep

if TYPE_CHECKING:
    from rebinding.api.model import Model
    from rebinding.surgery import Recording as SurgeryRecording


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """An unedited run of a model over prompts; edited runs continue it and compute only what the edits change.

    It is that of the model as it was: after a change of weights or hooks, a run is refused; record again.
    """

    model: Model
    prompts: Prompts
    recorded: SurgeryRecording
    weights: Weights
    """The model's weights and hooks when it was recorded."""

    def __repr__(self) -> str:
        return f"Recording({self.model!r}, {self.prompts!r})"

    def __getstate__(self) -> object:
        raise SurgeryError(
            "a Recording continues its model and cannot be pickled; save what read or run returns, and record again"
        )

    def read(self, *reads: Read) -> list[Tensor]:
        """The values of the unedited run, one tensor for each read."""
        return [values[0] for values in self._run([[]], reads, "live", True)]

    def run(
        self, edits: Edit | Sequence[Edit], *reads: Read, attention: Attention = "live", allow_noop: bool = False
    ) -> list[Tensor]:
        """Run every prompt with all edits together; one tensor for each read, prompts first.

        Edits that change nothing that is read, and no edits at all, raise `NothingEdited`, unless `allow_noop`. With
        `attention="frozen"` every head keeps its recorded output, except where an edit writes it; MLPs and norms are
        recomputed.
        """
        edit_list = [edits] if isinstance(edits, Edit) else list(edits)
        return [values[0] for values in self._run([edit_list], reads, attention, allow_noop)]

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
        if isinstance(edits, Edit) or not len(edits):
            raise SurgeryError("run_each takes a list of entries, each an edit or a list of edits; run takes one edit")
        entries = [[entry] if isinstance(entry, Edit) else list(entry) for entry in edits]
        return self._run(entries, reads, attention, allow_noop)

    def _run(
        self, entries: Sequence[Sequence[Edit]], reads: Sequence[Read], attention: Attention, allow_noop: bool
    ) -> list[Tensor]:
        for item, kind in [*((edit, Edit) for entry in entries for edit in entry), *((read, Read) for read in reads)]:
            if not isinstance(item, kind):
                raise SurgeryError(f"expected {kind.__name__}(...); got {item!r:.60}")
        if attention == "frozen" and not self.recorded.has("z"):
            raise SurgeryError("attention='frozen' needs recorded head outputs: model.record(prompts, keep=('z',))")
        if not allow_noop and not all(entries):
            raise NothingEdited(
                "no edits given, so the result would be the unedited run; recording.read(...) returns it, and"
                " allow_noop=True admits an empty entry"
            )
        variants = []
        for entry in entries:
            check_entry(entry, reads, self)
            variants.append([order for edit in entry for order in surgery_edits(edit, self)])
        requests = [surgery_reads(read, self) for read in reads]
        try:
            with hold(self.model.loaded.model):
                self.weights.check(self.model.loaded.model)
                values = sweep(
                    self.model.surgeon, self.recorded, variants, [request for parts in requests for request in parts],
                    attention=attention, allow_noop=allow_noop or not any(variants),
                )  # fmt: skip
        except NothingEdited as error:
            n = len(self.prompts)
            rows = f" Row r is prompt r % {n} of entry r // {n}." if len(entries) > 1 else ""
            raise NothingEdited(f"{error}{rows}") from None
        remaining = iter(values)
        return [_in_order(read, [next(remaining) for _ in parts]) for read, parts in zip(reads, requests, strict=True)]

    def value_for(self, edit: Edit, target: Recording) -> Tensor:
        """What this recording has at the site of an edit of another recording: (prompt, head, position, width)."""
        if self.model is not target.model:
            same = "another loaded copy of " if self.model.name == target.model.name else ""
            raise SurgeryError(
                f"the value comes from a recording of {same}{self.model.name}, and the run is of {target.model.name};"
                " the values of one model mean nothing in another. Record the prompts with the same model object"
            )
        if len(self.prompts) != len(target.prompts):
            raise SurgeryError(
                f"the value comes from a recording of {len(self.prompts)} prompts, and the run has"
                f" {len(target.prompts)}; prompt by prompt, both need equally many"
            )
        positions = [edit.at] if is_one_position(edit.at) else edit.at
        heads = None if edit.head is None else head_list(edit.head)
        read = Read(edit.site, cast("list[str]", positions), heads, edit.layer, edit.scope)
        return self.read(read)[0]


def surgery_reads(read: Read, recording: Recording) -> list[surgery.Read]:
    """A read, layer by layer."""
    positions, anatomy = table_of(recording.prompts, read.at), recording.model.anatomy  # (prompt, position)
    if read.site == "answers":
        answers = recording.prompts.candidates()
        return [surgery.Read("logits", positions=positions, reduce=surgery.LogitsOf(answers))]
    if read.site == "logits":
        return [surgery.Read("logits", positions=positions)]
    if read.site in HEADLESS:
        return [surgery.Read(read.site, layer_of(read, anatomy), positions=positions)]
    by_layer = heads_by_layer(head_list(cast(Head, read.head)), anatomy, of_group=read.scope == "group")
    if read.scope != "head":
        return [surgery.Read(read.site, layer, positions=positions, heads=heads) for layer, heads in by_layer.items()]
    return [  # two query heads may have one KV head, which one read would name twice
        surgery.Read(read.site, layer, positions=positions, heads=[anatomy.parts[layer].kv_head(head)])
        for layer, heads in by_layer.items()
        for head in heads
    ]


def _in_order(read: Read, columns: Sequence[Tensor]) -> Tensor:
    """The parts of a read as one tensor, heads in the order in which they were given, without the axis of a single head
    or position."""
    heads = None if read.head is None else head_list(read.head)
    value = columns[0] if heads is None else join_heads(heads, columns, axis=2)  # (entry, prompt, ...)
    if is_one_position(read.at):
        value = value.squeeze(-2)
    return value.squeeze(2) if read.head is not None and is_one_head(read.head) else value
