"""The cases of Section 5: prompts, the slot i that each of them retrieves, and the slot j to move to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor

from rebinding.experiments.binding.conditions import Condition
from rebinding.experiments.binding.kinds import KINDS
from rebinding.experiments.tokens import positions
from rebinding.surgery import SurgeryError
from rebinding.world.prompts import Encoded

Slots: TypeAlias = tuple[int, int]


def every_pair(slots: int) -> tuple[Slots, ...]:
    """All ordered pairs of slots."""
    return tuple(permutations(range(slots), 2))


@dataclass(frozen=True, eq=False)
class Cases:
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


def cases_of(
    prompts: Sequence[Encoded], ids: Sequence[int], pairs: Sequence[Slots], token: Callable[[str], int]
) -> Cases:
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
    return Cases(prompts, torch.tensor(ids)[source], source, i, j, keys[source], objects[source])
