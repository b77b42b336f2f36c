"""Edits of one run that would undo each other, and reads that would not show an edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from rebinding.api.edits import Edit, Read, head_list, table_of
from rebinding.surgery.sites import SurgeryError

if TYPE_CHECKING:
    from rebinding.api.recording import Recording

EditedPlace: TypeAlias = tuple[int, int, int, int]
"""Layer, query head (-1 at sites without heads), prompt, position."""
OF_A_QUERY = ("q", "q_rot", "scores", "pattern", "z")
"""Sites of a head at a query's position, each computed from those before it and nothing else at that position."""
LATER = {site: OF_A_QUERY[number + 1 :] for number, site in enumerate(OF_A_QUERY)} | {"k": ("k_rot",), "v": ("v_seen",)}
"""Sites through which all of an edit's effect passes, at its own head and position."""


def places_of(item: Edit | Read, recording: Recording) -> set[EditedPlace]:
    """Where an edit writes or a read looks; KV heads as the query heads that see them."""
    layer_only = item.head is None
    heads = [(cast(int, item.layer), -1)] if layer_only else head_list(cast("tuple[int, int]", item.head))
    if item.scope == "group":
        groups = {layer: recording.model.anatomy.parts[layer].group for layer, _ in heads}
        heads = [(layer, kv * groups[layer] + query) for layer, kv in heads for query in range(groups[layer])]
    lines = enumerate(table_of(recording.prompts, item.at).tolist())
    at = [(prompt, position) for prompt, line in lines for position in line]
    return {(*head, *place) for head in heads for place in at}


def check_entry(edits: Sequence[Edit], reads: Sequence[Read], recording: Recording) -> None:
    """Refuse edits of one run of which only one acts, and reads of keys or values that do not show them."""
    places = [places_of(edit, recording) for edit in edits] if len(edits) > 1 or _reads_copies(reads) else []
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
                _check_shows(read, written & places_of(read, recording))


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
