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

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_CONDITIONS, Condition, Shift, shift_of
from rebinding.experiments.binding.directions import Directions, edit_keys
from rebinding.experiments.binding.observations import SlotPairs, Slots, by_head, reads_of, slot_pairs, table_of
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.seeds import MATCHED
from rebinding.experiments.tokens import positions, prompt_blocks, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Edit, Surgeon, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.surgery.sweep import edit_heads, sweep
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
    scope: Scope = "head",
    draws: int = 20,
    seed: int = MATCHED,
    block: int | None = None,
) -> Evidence:
    """Run `conditions` on `heads`, for every prompt with every pair (i, j) that starts from its answer's slot.

    `pairs=((1, 0),)` is the published choice, `((1, 2),)` goes to the third slot, and `every_pair(slots)` is the
    counterbalanced one. `token` gives the token of an object; `draws` and `seed` are those of matched noise. The
    evidence of several calls on parts of the prompts can be merged.
    """
    names = [condition.name for condition in conditions]
    if len(set(names)) < len(names):
        raise SurgeryError(f"conditions need different names; got {names}")
    if len(ids) != len(prompts):
        raise SurgeryError(f"{len(ids)} ids for {len(prompts)} prompts")
    setup = _Setup(surgeon, directions.of(heads), scope, draws, seed)
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
    scope: Scope
    draws: int
    seed: int

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.directions.heads

    def shift(self, condition: Condition, cases: SlotPairs) -> Shift:
        """The vectors of a condition, in every case and draw."""
        options: Any = {"scope": self.scope, "draws": self.draws, "seed": self.seed}
        return shift_of(condition, self.directions, self.surgeon.anatomy, cases.i, cases.j, **options)


def _run_block(setup: _Setup, cases: SlotPairs, conditions: Sequence[Condition]) -> Iterator[pd.DataFrame]:
    """All conditions and draws of a block as variants of one run, the unedited one first."""
    surgeon, anatomy, heads = setup.surgeon, setup.surgeon.anatomy, setup.heads
    shifts = [setup.shift(condition, cases) for condition in conditions]
    draws = [(row, shift, draw) for row, shift in zip(conditions, shifts, strict=True) for draw in range(shift.draws)]
    variants = [[], *(_edits(setup, cases, *of_draw) for of_draw in draws)]
    recording, reads = surgeon.record(token_batch(cases.prompts)), reads_of(heads, cases)
    results = sweep(surgeon, recording, variants, reads, source=cases.source, allow_noop=True)
    masses, logits = by_head(heads, results)
    changes = [shift.relative_change(setup.directions, anatomy, heads, setup.scope) for shift in shifts]
    for number, ((row, _, draw), change) in enumerate(zip(draws, torch.cat(changes), strict=True), start=1):
        frame = table_of(heads, cases, row.name, draw, (masses[0], logits[0]), (masses[number], logits[number]))
        yield frame.assign(relative_change=change.repeat_interleave(len(heads)).numpy())


def _edits(setup: _Setup, cases: SlotPairs, condition: Condition, shift: Shift, draw: int) -> list[Edit]:
    """The edits of one draw of a condition, in every case."""
    edits, anatomy = [], setup.surgeon.anatomy
    if shift.q is not None:
        readout = positions(cases.prompts, "readout")[cases.source][:, None]
        edits += edit_heads(anatomy, "q", setup.heads, shift.q[draw][:, :, None], at=readout, mode="add")
    parts = [(slot, vectors) for slot, vectors in ((cases.j, shift.at_j), (cases.i, shift.at_i)) if vectors is not None]
    if parts:
        tokens = torch.cat([cases.tokens(condition, slot) for slot, _ in parts], dim=1)  # (case, token)
        kinds = len(condition.kinds)
        values = [vectors[draw][:, :, None].expand(-1, -1, kinds, -1) for _, vectors in parts]
        edits += edit_keys(anatomy, setup.heads, torch.cat(values, dim=2), at=tokens, scope=setup.scope)
    return edits


def _settings(setup: _Setup, pairs: Sequence[Slots], conditions: Sequence[Condition]) -> dict[str, Any]:
    return {
        "heads": [list(head) for head in setup.heads],
        "pairs": [list(pair) for pair in pairs],
        "conditions": {
            row.name: asdict(row) | {"kinds": list(row.kinds), "means": list(row.means)} for row in conditions
        },
        "scope": setup.scope,
        "draws": setup.draws,
        "seed": setup.seed,
        "slots": len(setup.directions.q),
    }
