"""Measure the attention of heads at one token on every earlier token with a role.

A token is named by its function in the prompt if it has one (`swap_asked`), else by its place without the number
(`context_box`: the label of a box that is not mentioned again), so that a name means the same in every prompt. The
heads' own token is skipped: attention on it reads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.attention.named import names_before
from rebinding.experiments.attention.request import ATTENTION, AttentionToRoles
from rebinding.experiments.tokens import attention_on, positions, prompt_blocks, token_batch
from rebinding.experiments.workbench import Workbench, measures
from rebinding.paper.circuit import Head
from rebinding.surgery import Read, Surgeon
from rebinding.task.prompts import Encoded, PromptError


def measure_heads(
    surgeon: Surgeon, prompts: Sequence[Encoded], ids: Sequence[int], heads: Sequence[Head], at: str
) -> Evidence:
    """A row per prompt, head and token."""
    tokens = [names_before(encoded, at) for encoded in prompts]
    names = list(tokens[0])
    other = next((number for number, places in zip(ids, tokens, strict=True) if list(places) != names), None)
    if other is not None:
        raise PromptError(f"prompt {other} has other roles than prompt {ids[0]}, which has {', '.join(names)}")
    parts = []
    for where in prompt_blocks(surgeon, prompts):
        keys = torch.tensor([[places[name] for name in names] for places in tokens[where]])  # (prompt, token)
        parts.append(_attention(surgeon, prompts[where], heads, at, keys))
    attention = torch.cat(parts)  # (prompt, head, token)
    uniform = 1.0 / (positions(prompts, at) + 1).to(attention.dtype)  # (prompt,): causal, so itself and all before it
    index = pd.MultiIndex.from_product([list(ids), list(heads), names], names=["prompt", "where", "token"])
    rows = index.to_frame(index=False)
    rows[["layer", "head"]] = rows.pop("where").tolist()
    rows["attention"] = attention.flatten().numpy()
    rows["uniform"] = uniform.repeat_interleave(len(heads) * len(names)).numpy()
    return ATTENTION.evidence(rows, {"at": at})


def _attention(surgeon: Surgeon, prompts: Sequence[Encoded], heads: Sequence[Head], at: str, keys: Tensor) -> Tensor:
    """The attention of heads at one token on the keys: (prompt, head, token)."""
    where, take = positions(prompts, at)[:, None], attention_on(keys)
    reads = [Read("pattern", layer, positions=where, heads=[head], reduce=take) for layer, head in heads]
    return torch.cat([pattern.cpu() for pattern in surgeon.run(surgeon.record(token_batch(prompts)), [], reads)], dim=1)


@measures(AttentionToRoles)
def measure_attention(bench: Workbench, request: AttentionToRoles) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    return measure_heads(bench.surgeon, prompts, request.prompts.ids, request.heads, request.at)
