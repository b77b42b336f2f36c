"""Section 5: do the heads that point at the answer's slot match binding IDs by their queries and keys?

A *case* is a prompt whose answer stands in slot i, and another slot j. Adding `mean q[j] - mean q[i]` at the readout
makes a head ask for slot j; exchanging the means at the tokens of the two slots makes slot j look like slot i and the
other way round. If a head matches binding IDs, either edit moves its attention to slot j, and both together cancel.

`scope="group"` edits a KV head's keys once, as published, so every query head of the group sees them; the shifts of the
chosen query heads that share it are averaged. `scope="head"` gives each chosen query head its own edited copy.

The evidence has the attention on every slot's box and object token, before and after, for every case, condition, draw
and head. The read-out set and the measures are chosen afterwards (`rebinding.experiments.binding.summary`).

**Exchange**, with real queries and keys: is a weak effect of a mean direction due to the head, or due to the mean?

Adding the difference of two means to a query changes only what is linear in the slot. Here the query of a case (i, j)
is set to the query of the same head at the readout of the same story with the question about the box whose object
stands in slot j. Only the question differs, so this is the head's own query for slot j. The keys of that story are the
same, because the question comes after them. The counterpart of shifted keys is therefore an exchange within the prompt:
the tokens of slot j get the keys of slot i, kind by kind, and the other way round.

Queries and keys are the outputs of the projections, before any norm and before RoPE, so RoPE turns a key that is
written at another token to that token's position. Keys are edited as each chosen query head sees them.

Measure the requests of section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import (
    PUBLISHED_CONDITIONS,
    Condition,
    K,
    Q,
    Shift,
    Slots,
    shift_of,
)
from rebinding.experiments.binding.directions import KINDS, Directions, edit_keys, measure_directions, read_vectors
from rebinding.experiments.binding.request import BINDING, EXCHANGE, Exchange, MeanVectors, Shifts
from rebinding.experiments.random_draws import MATCHED
from rebinding.experiments.tokens import attention_on, positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Edit, LogitsOf, Read, Surgeon, SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.surgery.surgeon import Variant
from rebinding.task.prompts import Encoded

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


@dataclass(frozen=True, eq=False)
class SlotPairs:
    """The prompts of a block; `source` (a place in the block), `i` and `j` are the prompt and the slots of each case.

    `keys` are the tokens of all slots, kind by kind (case, kind x slot), `objects` the answer tokens of the objects in
    slot order (case, slot).
    """

    prompts: Sequence[Encoded]
    ids: Tensor
    source: Tensor
    i: Tensor
    j: Tensor
    keys: Tensor
    objects: Tensor

    def __len__(self) -> int:
        return len(self.source)

    def tokens(self, condition: Condition, slot: Tensor) -> Tensor:
        """The tokens where a condition edits the keys of each case's slot: (case, kind)."""
        table = self.keys.view(len(self), len(KINDS), -1)  # (case, kind, slot)
        chosen = table[:, [KINDS.index(kind) for kind in condition.kinds]]
        return chosen.gather(2, slot[:, None, None].expand(-1, chosen.shape[1], 1))[:, :, 0]


def slot_pairs(
    prompts: Sequence[Encoded], ids: Sequence[int], pairs: Sequence[Slots], token: Callable[[str], int]
) -> SlotPairs:
    """Every prompt with every pair (i, j) of slots whose i is the slot of its answer."""
    slots = len(prompts[0].prompt.story.contents)
    invalid = [pair for pair in pairs if len(set(pair)) < 2 or not 0 <= min(pair) <= max(pair) < slots]
    if invalid:
        raise SurgeryError(f"pairs are two different slots below {slots}; got {invalid}")
    cases = [(n, i, j) for n, encoded in enumerate(prompts) for i, j in pairs if encoded.prompt.answer_slot == i]
    unpaired = sorted(set(range(len(prompts))) - {n for n, _, _ in cases})
    if unpaired:
        raise SurgeryError(
            f"prompt {ids[unpaired[0]]} has its answer in slot {prompts[unpaired[0]].prompt.answer_slot}, and no pair"
            f" starts from there: {list(pairs)}. Give pairs=every_pair({slots}), or leave such prompts out."
        )
    source, i, j = torch.tensor(cases).T
    roles = [f"context_{kind}[{slot}]" for kind in KINDS for slot in range(slots)]
    keys = torch.stack([positions(prompts, role) for role in roles], dim=1)  # (prompt, kind x slot)
    objects = torch.tensor(
        [[token(word) for word in encoded.prompt.story.objects] for encoded in prompts]
    )  # (prompt, slot)
    return SlotPairs(prompts, torch.tensor(ids)[source], source, i, j, keys[source], objects[source])


def run_variants(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    variants: Sequence[Variant],
    heads: Sequence[Head],
    keys: Tensor,
    objects: Tensor,
    *,
    source: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention of heads from the readout to keys (row, key), as (variant, row, head, key), and the logits of
    objects (row, token), as (variant, row, token). Row r is prompt `source[r]`, by default prompt r."""
    readout = positions(prompts, "readout")
    readout = (readout if source is None else readout[source])[:, None]
    reads = [
        Read("pattern", readout, heads, reduce=attention_on(keys)),
        Read("logits", readout, reduce=LogitsOf(objects)),
    ]
    recording = surgeon.record(token_batch(prompts))
    masses, logits = surgeon.sweep(recording, variants, reads, source=source, allow_noop=True)
    return masses.cpu(), logits[:, :, 0].cpu()


def table_of(
    heads: Sequence[Head],
    cases: SlotPairs,
    condition: str,
    draw: int,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> pd.DataFrame:
    """One row per case and head."""
    count, slots = len(heads), cases.objects.shape[1]
    by_case: dict[str, Any] = {
        "prompt": cases.ids, "i": cases.i, "j": cases.j, "correct": before[1].argmax(1) == cases.i,
    }  # fmt: skip
    columns: dict[str, Any] = {name: np.repeat(value.numpy(), count) for name, value in by_case.items()}
    columns |= {"condition": condition, "draw": draw}
    columns |= {name: np.tile([head[n] for head in heads], len(cases)) for n, name in enumerate(("layer", "head"))}
    for when, (masses, logits) in (("before", before), ("after", after)):
        for place, name in enumerate(f"{kind}_{slot}" for kind in KINDS for slot in range(slots)):
            columns[f"{when}_{name}"] = masses[:, :, place].flatten().numpy()
        for slot in range(slots):
            columns[f"{when}_logit_{slot}"] = np.repeat(logits[:, slot].numpy(), count)
    return pd.DataFrame(columns)


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
    masses, logits = run_variants(
        surgeon, cases.prompts, variants, heads, cases.keys, cases.objects, source=cases.source
    )
    changes = [shift.relative_change(setup.directions, anatomy, heads, setup.scope) for shift in shifts]
    for number, ((row, _, draw), change) in enumerate(zip(draws, torch.cat(changes), strict=True), start=1):
        frame = table_of(heads, cases, row.name, draw, (masses[0], logits[0]), (masses[number], logits[number]))
        yield frame.assign(relative_change=change.repeat_interleave(len(heads)).numpy())


def _edits(setup: _Setup, cases: SlotPairs, condition: Condition, shift: Shift, draw: int) -> list[Edit]:
    """The edits of one draw of a condition, in every case."""
    edits, anatomy = [], setup.surgeon.anatomy
    if shift.q is not None:
        readout = positions(cases.prompts, "readout")[cases.source][:, None]
        edits.append(Edit("q", shift.q[draw][:, :, None], readout, setup.heads, mode="add"))
    parts = [(slot, vectors) for slot, vectors in ((cases.j, shift.at_j), (cases.i, shift.at_i)) if vectors is not None]
    if parts:
        tokens = torch.cat([cases.tokens(condition, slot) for slot, _ in parts], dim=1)  # (case, token)
        kinds = len(condition.kinds)
        values = [vectors[draw][:, :, None].expand(-1, -1, kinds, -1) for _, vectors in parts]
        edits.append(edit_keys(anatomy, setup.heads, torch.cat(values, dim=2), at=tokens, scope=setup.scope))
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


def run_exchange(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    donors: Sequence[Sequence[Encoded]],
    heads: Sequence[Head],
    *,
    ids: Sequence[int],
    token: Callable[[str], int],
    pairs: Sequence[Slots],
    block: int | None = None,
) -> Evidence:
    """Real queries (`q`) and real keys (`k_both`) on every prompt with every pair (i, j) that starts from its answer's
    slot. `donors[k]` are the same stories in the same order with the question about the box of slot k."""
    _check(prompts, donors)
    frames = [
        frame
        for part in prompt_blocks(surgeon, prompts, block)
        for frame in _exchange_block(
            surgeon, slot_pairs(prompts[part], ids[part], pairs, token), [donor[part] for donor in donors], tuple(heads)
        )
    ]
    settings: dict[str, Any] = {"heads": [list(head) for head in heads], "slots": len(donors)}
    return EXCHANGE.evidence(pd.concat(frames, ignore_index=True), settings)


def _check(prompts: Sequence[Encoded], donors: Sequence[Sequence[Encoded]]) -> None:
    """Refuse donors that differ from the prompts in more than the question."""
    for slot, donor_prompts in enumerate(donors):
        for prompt, donor in zip(prompts, donor_prompts, strict=True):
            if donor.prompt.story != prompt.prompt.story or donor.prompt.answer_slot != slot:
                raise SurgeryError(
                    f"a donor for slot {slot} is the prompt's own story with a question whose answer stands there; got"
                    f" an answer in slot {donor.prompt.answer_slot}. Make them with design.direction(id, slot)"
                )
            if len(prompt) != len(donor):
                raise SurgeryError(
                    f"{len(prompt)} tokens and {len(donor)} with another question: positions do not correspond; use a"
                    " tokenizer in which every label is as long as the others"
                )


def _exchange_block(
    surgeon: Surgeon, cases: SlotPairs, donors: Sequence[Sequence[Encoded]], heads: tuple[Head, ...]
) -> Iterator[pd.DataFrame]:
    """Both conditions and the unedited run as variants of one run."""
    own, own_keys = read_vectors(surgeon, cases.prompts, _tokens_of_slots(cases), heads)
    queries, readout = _queries(surgeon, cases, donors, heads), positions(cases.prompts, "readout")[cases.source]
    tokens, keys, other_keys = _keys(cases, own_keys)
    variants = [
        [],
        [Edit("q", queries[:, :, None], readout[:, None], heads)],
        [Edit("k", other_keys, tokens, heads, scope="head")],
    ]
    masses, logits = run_variants(
        surgeon, cases.prompts, variants, heads, cases.keys, cases.objects, source=cases.source
    )
    changes = {
        Q.name: relative_change(queries, own[cases.source]),
        K.name: relative_change(other_keys, keys).amax(dim=2),
    }  # (case, head)
    for number, (name, change) in enumerate(changes.items(), start=1):
        frame = table_of(heads, cases, name, 0, (masses[0], logits[0]), (masses[number], logits[number]))
        yield frame.assign(relative_change=change.flatten().numpy())


def _queries(
    surgeon: Surgeon, cases: SlotPairs, donors: Sequence[Sequence[Encoded]], heads: tuple[Head, ...]
) -> Tensor:
    """The real queries for slot j: (case, head, head_dim)."""
    readout = positions(cases.prompts, "readout")[:, None]  # any token: the keys are not used
    real = torch.stack([read_vectors(surgeon, donor, readout, heads)[0] for donor in donors])
    return real[cases.j, cases.source]


def _tokens_of_slots(cases: SlotPairs) -> Tensor:
    """The tokens of every slot, kind by kind: (prompt, kind x slot)."""
    roles = [f"context_{kind}[{slot}]" for kind in KINDS for slot in range(cases.objects.shape[1])]
    return torch.stack([positions(cases.prompts, role) for role in roles], dim=1)


def _keys(cases: SlotPairs, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of slots j and i (case, token), their own keys and the keys of the other slot (case, head, token,
    head_dim), from the keys of all slots (prompt, head, kind x slot, head_dim)."""
    by_slot = keys[cases.source].unflatten(2, (len(KINDS), -1))  # (case, head, kind, slot, head_dim)
    case = torch.arange(len(cases))
    at_j, at_i = by_slot[case, :, :, cases.j], by_slot[case, :, :, cases.i]  # (case, head, kind, head_dim)
    places = torch.cat([cases.tokens(K, cases.j), cases.tokens(K, cases.i)], dim=1)
    return places, torch.cat([at_j, at_i], dim=2), torch.cat([at_i, at_j], dim=2)


def measure_vectors(bench: Workbench, request: MeanVectors) -> Mapping[str, Tensor]:
    prompts = {slot: bench.prompts.encode(of_slot).prompts for slot, of_slot in enumerate(request.slots)}
    directions = measure_directions(bench.surgeon, prompts, request.heads)
    return {"q": directions.q, "k": directions.k}


def measure_shifts(bench: Workbench, request: Shifts) -> Evidence:
    """Run every batch of directions on every prompt, with random vectors of its own; `draw` counts over all batches."""
    results = [_of_batch(bench, request, batch, MATCHED + number) for number, batch in enumerate(request.batches)]
    rows = [
        result.rows.assign(draw=result.rows["draw"] + number * request.draws) for number, result in enumerate(results)
    ]
    return BINDING.evidence(pd.concat(rows, ignore_index=True), results[0].settings)


def _of_batch(bench: Workbench, request: Shifts, batch: MeanVectors, seed: int) -> Evidence:
    return run_binding(
        bench.surgeon,
        bench.prompts.encode(request.prompts).prompts,
        Directions(batch.heads, **bench.tensors(batch)),
        batch.heads,
        ids=request.prompts.ids,
        token=lambda word: bench.prompts.encoder.answer_token(word, request.answers),
        pairs=request.slots,
        conditions=request.conditions,
        scope=request.scope,
        draws=request.draws,
        seed=seed,
    )


def measure_exchange(bench: Workbench, request: Exchange) -> Evidence:
    return run_exchange(
        bench.surgeon,
        bench.prompts.encode(request.prompts).prompts,
        [bench.prompts.encode(donor).prompts for donor in request.donors],
        request.heads,
        ids=request.prompts.ids,
        token=lambda word: bench.prompts.encoder.answer_token(word, request.answers),
        pairs=request.slots,
    )
