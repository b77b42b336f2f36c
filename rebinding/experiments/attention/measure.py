"""How much of their attention heads give, from one token, to every earlier token that has a role.

A token is called by what it does in its prompt where it does something (`swap_asked`), else by its place without the
number (`context_box`: that of a box nobody mentions again), so that a name means the same in every prompt. The token
at which the heads stand is left out: attention that rests there looks at nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.attention.named import names_before
from rebinding.experiments.attention.request import ATTENTION, AttentionToRoles
from rebinding.experiments.tokens import BLOCK, attention_on, blocks, positions, token_batch
from rebinding.experiments.workbench import Workbench, measures
from rebinding.paper.circuit import Head
from rebinding.surgery import Read, Surgeon
from rebinding.task.prompts import Encoded, PromptError


def measure_heads(
    surgeon: Surgeon, prompts: Sequence[Encoded], ids: Sequence[int], heads: Sequence[Head], at: str
) -> Evidence:
    """A row per prompt, head and token."""
    named = [names_before(one, at) for one in prompts]
    names = list(named[0])
    lacking = next((number for number, one in zip(ids, named, strict=True) if list(one) != names), None)
    if lacking is not None:
        raise PromptError(f"prompt {lacking} has other roles than prompt {ids[0]}, which has {', '.join(names)}")
    parts = []
    for where in blocks(len(prompts), BLOCK):
        keys = torch.tensor([[one[name] for name in names] for one in named[where]])  # (prompt, token)
        parts.append(_attention(surgeon, prompts[where], heads, at, keys))
    found = torch.cat(parts)  # (prompt, head, token)
    uniform = 1.0 / (positions(prompts, at) + 1).to(found.dtype)  # (prompt,): causal, so itself and what is before it
    index = pd.MultiIndex.from_product([list(ids), list(heads), names], names=["prompt", "where", "token"])
    rows = index.to_frame(index=False)
    rows[["layer", "head"]] = rows.pop("where").tolist()
    rows["attention"] = found.flatten().numpy()
    rows["uniform"] = uniform.repeat_interleave(len(heads) * len(names)).numpy()
    return ATTENTION.evidence(rows, {"at": at})


def _attention(surgeon: Surgeon, prompts: Sequence[Encoded], heads: Sequence[Head], at: str, keys: Tensor) -> Tensor:
    """(prompt, head, token)"""
    where, take = positions(prompts, at)[:, None], attention_on(keys)
    reads = [Read("pattern", layer, positions=where, heads=[head], take=take) for layer, head in heads]
    return torch.cat([one.cpu() for one in surgeon.run(surgeon.record(token_batch(prompts)), [], reads)], dim=1)


@measures(AttentionToRoles)
def measure_attention(bench: Workbench, request: AttentionToRoles) -> Evidence:
    prompts = bench.prompts.drawn(request.prompts).prompts
    return measure_heads(bench.surgeon, prompts, request.prompts.ids, request.heads, request.at)
