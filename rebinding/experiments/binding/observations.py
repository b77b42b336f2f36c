"""The cases of section 5 (a prompt and two slots), and what is read in them: attention on slots, and the logits of
their objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.binding.conditions import Condition
from rebinding.experiments.binding.directions import KINDS
from rebinding.experiments.tokens import attention_on, positions
from rebinding.paper.circuit import Head
from rebinding.surgery import LogitsOf, Read, SurgeryError
from rebinding.surgery.sweep import join_heads, read_heads
from rebinding.task.prompts import Encoded

Slots: TypeAlias = tuple[int, int]


def every_pair(slots: int) -> tuple[Slots, ...]:
    """All ordered pairs of slots."""
    return tuple(permutations(range(slots), 2))


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


def reads_of(heads: Sequence[Head], cases: SlotPairs) -> list[Read]:
    """Attention from the readout to every slot, layer by layer, and the logits of the slots' objects."""
    readout = positions(cases.prompts, "readout")[cases.source][:, None]
    return [
        *read_heads("pattern", heads, at=readout, reduce=attention_on(cases.keys)),
        Read("logits", positions=readout, reduce=LogitsOf(cases.objects)),
    ]


def by_head(heads: Sequence[Head], results: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention (variant, row, head, key) with the heads in their own order, and logits (variant, row, token)."""
    return join_heads(heads, results[:-1], axis=2).cpu(), results[-1][:, :, 0].cpu()


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
