"""What is looked at in a case of section 5: the attention of heads on slots, and the logits of the objects there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.binding.cases import Cases
from rebinding.experiments.binding.directions import by_layer
from rebinding.experiments.binding.kinds import KINDS
from rebinding.experiments.readout import attention_on, logits_of
from rebinding.experiments.tokens import positions
from rebinding.paper.circuit import Head
from rebinding.surgery import Read


def reads_of(heads: Sequence[Head], cases: Cases, copies: int) -> list[Read]:
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
    cases: Cases,
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
