"""The examples of section 5 with the slots that each is shifted between, and what is read of them: attention on slots,
and the logits of the objects there."""

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
from rebinding.experiments.binding.directions import KINDS, by_layer
from rebinding.experiments.tokens import attention_on, logits_of, positions
from rebinding.paper.circuit import Head
from rebinding.surgery import Read, SurgeryError
from rebinding.task.prompts import Encoded

Slots: TypeAlias = tuple[int, int]


def every_pair(slots: int) -> tuple[Slots, ...]:
    """All ordered pairs of slots."""
    return tuple(permutations(range(slots), 2))


@dataclass(frozen=True, eq=False)
class SlotPairs:
    """The prompts of a block, and for each case its prompt (a place in the block), i and j.

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
        """Where a condition edits the keys of each case's slot: (case, kind)."""
        table = self.keys.view(len(self), len(KINDS), -1)  # (case, kind, slot)
        chosen = table[:, [KINDS.index(kind) for kind in condition.kinds]]
        return chosen.gather(2, slot[:, None, None].expand(-1, chosen.shape[1], 1))[:, :, 0] + condition.key_offset


def slot_pairs(
    prompts: Sequence[Encoded], ids: Sequence[int], pairs: Sequence[Slots], token: Callable[[str], int]
) -> SlotPairs:
    slots = len(prompts[0].prompt.story.contents)
    strange = [pair for pair in pairs if len(set(pair)) < 2 or not 0 <= min(pair) <= max(pair) < slots]
    if strange:
        raise SurgeryError(f"pairs are two different slots below {slots}; got {strange}")
    found = [(n, i, j) for n, one in enumerate(prompts) for i, j in pairs if one.prompt.answer_slot == i]
    lonely = sorted(set(range(len(prompts))) - {n for n, _, _ in found})
    if lonely:
        raise SurgeryError(
            f"prompt {ids[lonely[0]]} has its answer in slot {prompts[lonely[0]].prompt.answer_slot}, and no pair"
            f" starts from there: {list(pairs)}. Give pairs=every_pair({slots}), or leave such prompts out."
        )
    source, i, j = torch.tensor(found).T
    roles = [f"context_{kind}[{slot}]" for kind in KINDS for slot in range(slots)]
    keys = torch.stack([positions(prompts, role) for role in roles], dim=1)  # (prompt, kind x slot)
    objects = torch.tensor([[token(word) for word in one.prompt.story.objects] for one in prompts])  # (prompt, slot)
    return SlotPairs(prompts, torch.tensor(ids)[source], source, i, j, keys[source], objects[source])


def reads_of(heads: Sequence[Head], cases: SlotPairs, copies: int) -> list[Read]:
    """Attention from the readout to every slot, a layer at a time, and the logits of the objects there; for so many
    copies of the cases."""
    readout = positions(cases.prompts, "readout")[cases.source].repeat(copies)[:, None]
    keys = attention_on(cases.keys.repeat(copies, 1))
    attention = [
        Read("pattern", layer, positions=readout, heads=[heads[place][1] for place in at], take=keys)
        for layer, at in by_layer(heads).items()
    ]
    return [*attention, Read("logits", positions=readout, take=logits_of(cases.objects.repeat(copies, 1)))]


def by_head(heads: Sequence[Head], results: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention (row, head, kind x slot) with the heads in their own order, and logits (row, slot)."""
    order = [place for at in by_layer(heads).values() for place in at]
    masses = torch.cat([one.cpu() for one in results[:-1]], dim=1)
    return masses[:, torch.argsort(torch.tensor(order))], results[-1][:, 0].cpu()


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
    known: dict[str, Any] = {
        "prompt": cases.ids, "i": cases.i, "j": cases.j, "correct": before[1].argmax(1) == cases.i,
    }  # fmt: skip
    columns: dict[str, Any] = {name: np.repeat(value.numpy(), count) for name, value in known.items()}
    columns |= {"condition": condition, "draw": draw}
    columns |= {name: np.tile([head[n] for head in heads], len(cases)) for n, name in enumerate(("layer", "head"))}
    for when, (masses, logits) in (("before", before), ("after", after)):
        for place, name in enumerate(f"{kind}_{slot}" for kind in KINDS for slot in range(slots)):
            columns[f"{when}_{name}"] = masses[:, :, place].flatten().numpy()
        for slot in range(slots):
            columns[f"{when}_logit_{slot}"] = np.repeat(logits[:, slot].numpy(), count)
    return pd.DataFrame(columns)
