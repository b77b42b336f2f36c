"""Section 5: do the heads that point at the answer's slot match binding IDs by their queries and keys?

A *case* is a prompt whose answer stands in slot i, and another slot j. Adding `mean q[j] - mean q[i]` at the readout
makes a head ask for slot j; exchanging the means at the tokens of the two slots makes slot j look like slot i and the
other way round. If a head matches binding IDs, either edit moves its attention to slot j, and both together cancel.

`scope="group"` edits a KV head's keys once, as published, so every query head of the group sees them; the shifts of the
chosen query heads that share it are averaged. `scope="head"` gives each chosen query head its own edited copy.

The evidence has the attention on every slot's box and object token, before and after, for every case, condition, draw
and head. The read-out set and the measures are chosen afterwards (`rebinding.experiments.binding.summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_CONDITIONS, Condition, Shift, shift_of
from rebinding.experiments.binding.directions import SITES, Directions, averaged_in_groups, by_layer
from rebinding.experiments.binding.observations import SlotPairs, Slots, by_head, reads_of, slot_pairs, table_of
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.seeds import MATCHED
from rebinding.experiments.tokens import positions, prompt_blocks, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Edit, Surgeon, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.prompts import Encoded


def run_binding(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    directions: Directions,
    heads: Sequence[Head],
    *,
    ids: Sequence[int],
    token: Callable[[str], int],
    pairs: Sequence[Slots] = ((1, 0),),
    conditions: Sequence[Condition] = PUBLISHED_CONDITIONS,
    controls: Sequence[Head] = (),
    scope: Scope = "head",
    draws: int = 20,
    seed: int = MATCHED,
    block: int | None = None,
) -> Evidence:
    """Run `conditions` on `heads`, for every prompt with every pair (i, j) that starts from its answer's slot.

    `pairs=((1, 0),)` is the published choice, `((1, 2),)` goes to the third slot, and `every_pair(slots)` is the
    counterbalanced one. `directions` are those of `heads` and of `controls`, the control heads. `token` gives the token
    of an object; `draws` and `seed` are those of matched noise. The evidence of several calls on parts of the prompts
    can be merged.
    """
    names = [condition.name for condition in conditions]
    if len(set(names)) < len(names):
        raise SurgeryError(f"conditions need different names; got {names}")
    if len(ids) != len(prompts):
        raise SurgeryError(f"{len(ids)} ids for {len(prompts)} prompts")
    setup = _Setup(surgeon, directions, tuple(heads), tuple(controls), scope, draws, seed)
    frames = [
        frame
        for part in prompt_blocks(surgeon, prompts, block)
        for frame in _run_block(setup, slot_pairs(prompts[part], ids[part], pairs, token), conditions)
    ]
    return BINDING.evidence(pd.concat(frames, ignore_index=True), _settings(setup, pairs, conditions))


@dataclass(frozen=True, eq=False)
class _Setup:
    """The arguments that are the same for all cases."""

    surgeon: Surgeon
    directions: Directions
    heads: tuple[Head, ...]
    controls: tuple[Head, ...]
    scope: Scope
    draws: int
    seed: int

    def edited_by(self, condition: Condition) -> tuple[Head, ...]:
        """The heads that a condition edits."""
        edited = self.heads if condition.on == "chosen" else self.controls
        if not edited:
            raise SurgeryError(f"condition {condition.name!r} edits no head; give {condition.on} heads")
        return edited


def _run_block(setup: _Setup, cases: SlotPairs, conditions: Sequence[Condition]) -> Iterator[pd.DataFrame]:
    """All conditions and draws of a block as rows of one run, on top of one recording."""
    recording = setup.surgeon.record(token_batch(cases.prompts))
    clean = setup.surgeon.run(recording, [], reads_of(setup.heads, cases, 1), source=cases.source)
    edits: list[Edit] = []
    shifts = [_shift(setup, cases, condition) for condition in conditions]
    first = 0
    for condition, shift in zip(conditions, shifts, strict=True):
        edits.extend(_edits(setup, cases, condition, shift, first))
        first += shift.draws * len(cases)
    copies = first // len(cases)
    reads = reads_of(setup.heads, cases, copies)
    after = setup.surgeon.run(recording, edits, reads, source=cases.source.repeat(copies), allow_noop=True)
    masses, logits = by_head(setup.heads, after)
    before = by_head(setup.heads, clean)
    first = 0
    for condition, shift in zip(conditions, shifts, strict=True):
        changes = shift.relative_change(
            setup.directions, setup.surgeon.anatomy, setup.edited_by(condition), setup.scope
        )
        for draw in range(shift.draws):
            rows = slice(first, first + len(cases))
            change = changes[draw].repeat_interleave(len(setup.heads))
            frame = table_of(setup.heads, cases, condition.name, draw, before, (masses[rows], logits[rows]))
            yield frame.assign(relative_change=change.numpy())
            first += len(cases)


def _shift(setup: _Setup, cases: SlotPairs, condition: Condition) -> Shift:
    return shift_of(
        condition,
        setup.directions.of(setup.edited_by(condition)),
        setup.surgeon.anatomy,
        cases.i,
        cases.j,
        scope=setup.scope,
        draws=setup.draws,
        seed=setup.seed,
    )


def _edits(setup: _Setup, cases: SlotPairs, condition: Condition, shift: Shift, first: int) -> Iterator[Edit]:
    """The edits of one condition; its rows are draw by draw, case by case, from row `first` on."""
    edited, (q_site, _) = setup.edited_by(condition), SITES[setup.directions.point]
    rows = torch.arange(first, first + shift.draws * len(cases))
    tokens, values = _key_edit(cases, condition, shift)
    for layer, at in by_layer(edited).items():
        names = [edited[place][1] for place in at]
        if shift.q is not None:
            places = positions(cases.prompts, condition.query_role)[cases.source].repeat(shift.draws)[:, None]
            width = setup.surgeon.anatomy.parts[layer].head_dim
            value = shift.q[:, :, at, :width].flatten(0, 1)[:, :, None]  # (row, head, 1, head_dim)
            yield Edit(q_site, layer, value, positions=places, heads=names, rows=rows, mode="add")
        if values is not None:
            yield _edit_of_keys(setup, layer, names, values[:, at], tokens.repeat(shift.draws, 1), rows)


def _key_edit(cases: SlotPairs, condition: Condition, shift: Shift) -> tuple[Tensor, Tensor | None]:
    """The tokens whose keys are edited (case, token), and the vectors added there (row, head, token, head_dim)."""
    parts = [(slot, vectors) for slot, vectors in ((cases.j, shift.at_j), (cases.i, shift.at_i)) if vectors is not None]
    if not parts:
        return torch.empty(0), None
    tokens = torch.cat([cases.tokens(condition, slot) for slot, _ in parts], dim=1)
    kinds = len(condition.kinds)
    values = [vectors.flatten(0, 1)[:, :, None].expand(-1, -1, kinds, -1) for _, vectors in parts]
    return tokens, torch.cat(values, dim=2)


def _edit_of_keys(setup: _Setup, layer: int, heads: list[int], values: Tensor, where: Tensor, rows: Tensor) -> Edit:
    parts = setup.surgeon.anatomy.parts[layer]
    raw = setup.directions.point == "raw"
    if setup.scope == "group":
        heads, values = averaged_in_groups(parts, heads, values)
        if not raw:  # k_rot is counted in query heads: the same for all of a group
            values = values.repeat_interleave(parts.group, dim=1)
            heads = [head * parts.group + member for head in heads for member in range(parts.group)]
    values = values[..., : parts.head_dim]
    if raw:
        return Edit("k", layer, values, positions=where, heads=heads, rows=rows, mode="add", scope=setup.scope)
    return Edit("k_rot", layer, values, positions=where, heads=heads, rows=rows, mode="add")


def _settings(setup: _Setup, pairs: Sequence[Slots], conditions: Sequence[Condition]) -> dict[str, Any]:
    return {
        "heads": [list(head) for head in setup.heads],
        "others": [list(head) for head in setup.controls],
        "pairs": [list(pair) for pair in pairs],
        "conditions": {
            row.name: asdict(row) | {"kinds": list(row.kinds), "means": list(row.means)} for row in conditions
        },
        "point": setup.directions.point,
        "scope": setup.scope,
        "draws": setup.draws,
        "seed": setup.seed,
        "slots": len(setup.directions.q),
    }
