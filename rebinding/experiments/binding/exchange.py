"""Section 5 with real queries and keys: is a weak effect of a mean direction due to the head, or due to the mean?

Adding the difference of two means to a query changes only what is linear in the slot. Here the query of a case (i, j)
is set to the query of the same head at the readout of the same story with the question about the box whose object
stands in slot j. Only the question differs, so this is the head's own query for slot j. The keys of that story are the
same, because the question comes after them. The counterpart of shifted keys is therefore an exchange within the prompt:
the tokens of slot j get the keys of slot i, kind by kind, and the other way round.

Queries and keys are the outputs of the projections, before any norm and before RoPE, so RoPE turns a key that is
written at another token to that token's position. Keys are edited as each chosen query head sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import K, Q
from rebinding.experiments.binding.directions import KINDS, read_vectors
from rebinding.experiments.binding.observations import SlotPairs, Slots, by_head, reads_of, slot_pairs, table_of
from rebinding.experiments.binding.request import EXCHANGE
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Surgeon, SurgeryError
from rebinding.surgery.sweep import edit_heads, sweep
from rebinding.task.prompts import Encoded


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
        for frame in _run_block(
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


def _run_block(
    surgeon: Surgeon, cases: SlotPairs, donors: Sequence[Sequence[Encoded]], heads: tuple[Head, ...]
) -> Iterator[pd.DataFrame]:
    """Both conditions and the unedited run as variants of one run."""
    recording, anatomy = surgeon.record(token_batch(cases.prompts)), surgeon.anatomy
    own, own_keys = read_vectors(surgeon, cases.prompts, _tokens_of_slots(cases), heads)
    queries, readout = _queries(surgeon, cases, donors, heads), positions(cases.prompts, "readout")[cases.source]
    tokens, keys, other_keys = _keys(cases, own_keys)
    variants = [
        [],
        edit_heads(anatomy, "q", heads, queries[:, :, None], at=readout[:, None]),
        edit_heads(anatomy, "k", heads, other_keys, at=tokens, scope="head"),
    ]
    reads = reads_of(heads, cases)
    results = sweep(surgeon, recording, variants, reads, source=cases.source, allow_noop=True)
    masses, logits = by_head(heads, results)
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
