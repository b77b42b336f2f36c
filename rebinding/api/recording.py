"""A recorded run of some prompts, and edited runs that continue it.

The edits and reads of a run are checked here in what depends on prompts: names of positions, values that come from
another recording, edits of one run of which only one would act, and keys that a query cannot see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor

from rebinding.api.prompts import Prompts
from rebinding.surgery import Edit, LogitsOf, NothingEdited, Read, in_layer
from rebinding.surgery.calling import Weights, hold
from rebinding.surgery.layers import LayerEdit, has_axes, split_edit, to_tensor, with_all_axes
from rebinding.surgery.sites import KEYED, Attention, Position, SurgeryError, head_table, is_one_position

if TYPE_CHECKING:
    from rebinding.api.model import Model
    from rebinding.surgery import RecordedRun


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """An unedited run of a model over prompts; edited runs continue it and compute only what the edits change.

    It is that of the model as it was: after a change of weights or hooks, a run is refused; record again.
    """

    model: Model
    prompts: Prompts
    recorded: RecordedRun
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
        variants = [[part for edit in entry for part in self._resolved_edits(edit)] for entry in entries]
        for entry in entries:
            _check_entry(entry, reads, self)
        try:
            with hold(self.model.loaded.model):
                self.weights.check(self.model.loaded.model)
                values = self.model.surgeon.sweep(
                    self.recorded,
                    variants,
                    [self._resolved_read(read) for read in reads],
                    attention=attention,
                    allow_noop=allow_noop or not any(entries),
                )
        except NothingEdited as error:
            n = len(self.prompts)
            rows = f" Row r is prompt r % {n} of entry r // {n}." if len(entries) > 1 else ""
            raise NothingEdited(f"{error}{rows}") from None
        return [
            value.squeeze(-2) if is_one_position(read.at) and has_axes(read) else value
            for read, value in zip(reads, values, strict=True)
        ]

    def table(self, item: Edit | Read) -> Tensor:
        """Positions of an edit or a read as indices: one line for all of its prompts, or one a prompt."""
        table = self.prompts.table(item.at)
        is_of_all = isinstance(item.at, Tensor) or isinstance(item, Read) or item.rows is None
        return table if is_of_all else table[torch.as_tensor(cast(Edit, item).rows)]

    def _resolved_read(self, read: Read) -> Read:
        """A read with indices for names, and of the logits of the answers for `answers`."""
        if read.site == "answers":
            return Read("logits", self.table(read), reduce=LogitsOf(self.prompts.candidates()))
        return replace(read, at=self.table(read))

    def _resolved_edits(self, edit: Edit) -> list[Edit]:
        """An edit layer by layer, with indices for names, and a tensor for a value, which leaves masked keys closed."""
        table, head = self.table(edit), None if edit.head is None else head_table(edit.head)
        if isinstance(edit.value, Recording):
            value = edit.value._value_for(edit, self)
        elif callable(edit.value):
            value = self._changed_by(edit.value, edit)
        else:
            value = with_all_axes(to_tensor(edit.value), edit, ("width",))
            _check_finite(value, edit.site)
        where = None if edit.where is None else with_all_axes(edit.where, edit, ())
        edit = replace(edit, value=value, at=table, head=head, where=where)
        return [
            replace(
                edit,
                value=_within_mask(part, self.recorded) if edit.site in KEYED else part.value,
                head=None if part.heads is None else in_layer(part.layer, part.heads),
                where=part.where,
            )
            for part in split_edit(self.model.anatomy, edit, self.prompts.length)
        ]

    def _changed_by(self, function: Callable[[Tensor], Tensor], edit: Edit) -> Tensor:
        """What a function makes of the unedited values at the site of an edit: (prompt, head, position, width)."""
        own = self._value_for(edit, self)
        value = function(own)
        if not isinstance(value, Tensor) or value.shape != own.shape:
            returned = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SurgeryError(
                f"the function of an edit gets the unedited values at {edit.site!r}, {tuple(own.shape)}, and returns a"
                f" tensor of the same shape; got {returned}"
            )
        _check_finite(value, edit.site)
        return value

    def _value_for(self, edit: Edit, target: Recording) -> Tensor:
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
        at = [edit.at] if is_one_position(edit.at) else edit.at
        head = None if edit.head is None else head_table(edit.head)
        (value,) = self.read(Read(edit.site, cast("Sequence[Position]", at), head, edit.layer, edit.scope))
        return value if edit.rows is None else value[torch.as_tensor(edit.rows)]


EditedPlace: TypeAlias = tuple[int, int, int, int]
"""Layer, query head (-1 at sites without heads), prompt, position."""
OF_A_QUERY = ("q", "q_rot", "scores", "pattern", "z")
"""Sites of a head at a query's position, each computed from those before it and nothing else at that position."""
LATER = {site: OF_A_QUERY[number + 1 :] for number, site in enumerate(OF_A_QUERY)} | {"k": ("k_rot",), "v": ("v_seen",)}
"""Sites through which all of an edit's effect passes, at its own head and position."""


def _places_of(item: Edit | Read, recording: Recording) -> set[EditedPlace]:
    """Where an edit writes or a read looks; KV heads as the query heads that see them."""
    prompts = range(len(recording.prompts)) if isinstance(item, Read) or item.rows is None else item.rows
    numbers = torch.as_tensor(prompts).reshape(-1)
    heads = torch.tensor([[[item.layer, -1]]]) if item.head is None else head_table(item.head)
    lines = [table.expand(len(numbers), *table.shape[1:]).tolist() for table in (heads, recording.table(item))]
    places = set()
    for prompt, own, positions in zip(numbers.tolist(), *lines, strict=True):
        for layer, head in own:
            group = recording.model.anatomy.parts[layer].group if item.scope == "group" else 1
            seen_by = range(head * group, (head + 1) * group) if item.scope == "group" else (head,)
            places |= {(layer, query, prompt, position) for query in seen_by for position in positions}
    return places


def _check_entry(edits: Sequence[Edit], reads: Sequence[Read], recording: Recording) -> None:
    """Refuse edits of one run of which only one acts, and reads of keys or values that do not show them."""
    functions = [edit for edit in edits if callable(edit.value) and not isinstance(edit.value, Recording)]
    if functions and len(edits) > 1:
        raise SurgeryError(
            f"an edit of {functions[0].site!r} by a function stands beside other edits: it is made of unedited values,"
            " whatever the others change. Run it alone, or give the value that it should have as a tensor"
        )
    places = [_places_of(edit, recording) for edit in edits] if len(edits) > 1 or _reads_copies(reads) else []
    for number, edit in enumerate(edits if len(edits) > 1 else ()):
        for other, written in zip(edits[:number], places[:number], strict=True):
            if edit.site == other.site and places[number] & written:
                raise SurgeryError(
                    f"two edits of one run write {edit.site!r} at {edit.at!r}: the outcome would depend on their order."
                    " Merge them, or run them as two entries of run_each"
                )
        _check_acts(edit, places[number], list(zip(edits, places, strict=True)), recording)
    for edit, written in zip(edits, places, strict=False):
        for read in reads:
            if read.site in ("k", "v") and (read.site, read.scope, edit.scope) == (edit.site, "head", "head"):
                _check_shows(read, written & _places_of(read, recording))


def _reads_copies(reads: Sequence[Read]) -> bool:
    return any(read.scope == "head" for read in reads)


def _check_acts(
    edit: Edit, own: set[EditedPlace], others: Sequence[tuple[Edit, set[EditedPlace]]], recording: Recording
) -> None:
    """Refuse an edit whose value another edit sets anew in some prompt, wherever it goes."""
    remaining, later = set(own), set()
    for other, written in others:
        if other.mode != "set":
            continue
        if other.site in LATER.get(edit.site, ()) and not (
            edit.scope == "group" and recording.model.anatomy.shares_keys
        ):
            later |= {other.site} if remaining & written else set()
            remaining -= written
        elif other.site == "resid" and edit.site in (*OF_A_QUERY, "mlp_out"):
            covered = {(layer - 1, prompt, position) for layer, _, prompt, position in written}
            hidden = {place for place in remaining if (place[0], *place[2:]) in covered}
            later |= {"resid"} if hidden else set()
            remaining -= hidden
    prompts = {prompt for _, _, prompt, _ in own}
    if prompts - {prompt for _, _, prompt, _ in remaining}:
        raise SurgeryError(
            f"an edit of {edit.site!r} at {edit.at!r} would not act: another edit of the same run sets"
            f" {', '.join(sorted(later))}, through which all of its effect passes. Leave one out, or run them as two"
            " entries of run_each"
        )


def _check_shows(read: Read, common: set[EditedPlace]) -> None:
    if common:
        raise SurgeryError(
            f"a read of {read.site!r} returns what the KV group has, which an edit with scope='head' leaves as it is;"
            f" read {'k_rot' if read.site == 'k' else 'v_seen'!r} to see the copy of one query head"
        )


def _check_finite(value: Tensor, site: str) -> None:
    """Refuse NaN and infinities; a score of minus infinity closes a key."""
    allowed = torch.isfinite(value) | (value == -math.inf) if site == "scores" else torch.isfinite(value)
    if not bool(allowed.all()):
        raise SurgeryError("the value has NaN or an infinity; every number after the edit would be NaN")


def _within_mask(edit: LayerEdit, recording: RecordedRun) -> Tensor:
    """The value of an edit of one layer's scores or pattern.

    A number goes to visible keys only. A value for every key (prompt, head, position, key) is refused if it opens a
    masked key, or closes all.
    """
    mask = recording.calls[edit.layer]["attention_mask"][0, 0].cpu()  # (query, key)
    closed = torch.finfo(mask.dtype).min
    is_visible = (mask > closed / 2)[edit.positions][:, None]  # (1 or prompt, 1, position, key)
    is_set_score = edit.site == "scores" and edit.mode == "set"
    value = edit.value.to(mask)
    if value.ndim == 0 or value.shape[-1] == 1:
        value = torch.where(is_visible, value, mask.new_tensor(closed if is_set_score else 0.0))
    opens = value > closed / 2 if is_set_score else value != 0
    if edit.site == "scores" and edit.mode == "add":
        opens = torch.zeros_like(opens)  # a masked score stays masked
    if bool((opens & ~is_visible).any()):
        raise SurgeryError(
            f"the value of an edit at {edit.site!r}, layer {edit.layer} opens keys that the query cannot see (later"
            " tokens, or tokens outside of the window); give them"
            f" {'torch.finfo(dtype).min' if is_set_score else '0'}, or give a number, which goes to visible keys only"
        )
    if edit.site == "scores" and bool(((value == -torch.inf) | ~is_visible).all(dim=-1).any()):
        raise SurgeryError(
            f"the scores of an edit at layer {edit.layer} are minus infinity at every key, and a softmax over no key is"
            " NaN; leave one key open, or edit 'pattern'"
        )
    return value
