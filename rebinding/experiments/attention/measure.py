"""Measure the attention of heads at one token on every earlier token with a role, as it is, and after other heads get
their outputs from a noise prompt.

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
from rebinding.experiments.attention.request import ATTENTION, SHAPED, AttentionToRoles, ShapedAttention
from rebinding.experiments.tokens import attention_on, positions, prompt_blocks, relative_change, token_batch
from rebinding.experiments.workbench import Workbench, measures
from rebinding.paper.circuit import Head
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.surgery.sweep import sweep
from rebinding.task.prompts import Encoded, PromptError


def measure_heads(
    surgeon: Surgeon, prompts: Sequence[Encoded], ids: Sequence[int], heads: Sequence[Head], at: str
) -> Evidence:
    """A row per prompt, head and token."""
    names, keys = tokens_before(prompts, ids, at)
    parts = []
    for where in prompt_blocks(surgeon, prompts):
        reads = reads_of(prompts[where], heads, at, keys[where])
        patterns = surgeon.run(surgeon.record(token_batch(prompts[where])), [], reads)
        parts.append(torch.cat([pattern.cpu() for pattern in patterns], dim=1))
    attention = torch.cat(parts)  # (prompt, head, token)
    uniform = 1.0 / (positions(prompts, at) + 1).to(attention.dtype)  # (prompt,): causal, so itself and all before it
    rows = index_of(ids, heads, names)
    rows["attention"] = attention.flatten().numpy()
    rows["uniform"] = uniform.repeat_interleave(len(heads) * len(names)).numpy()
    return ATTENTION.evidence(rows, {"at": at})


def tokens_before(prompts: Sequence[Encoded], ids: Sequence[int], at: str) -> tuple[list[str], Tensor]:
    """The names of the tokens with a role before that of the heads, and where they are: (prompt, token)."""
    tokens = [names_before(encoded, at) for encoded in prompts]
    names = list(tokens[0])
    other = next((number for number, places in zip(ids, tokens, strict=True) if list(places) != names), None)
    if other is not None:
        raise PromptError(f"prompt {other} has other roles than prompt {ids[0]}, which has {', '.join(names)}")
    return names, torch.tensor([[places[name] for name in names] for places in tokens])


def reads_of(prompts: Sequence[Encoded], heads: Sequence[Head], at: str, keys: Tensor) -> list[Read]:
    """Reads of the attention of heads at one token on the keys: (prompt, 1, token) a head."""
    where, take = positions(prompts, at)[:, None], attention_on(keys)
    return [Read("pattern", layer, positions=where, heads=[head], reduce=take) for layer, head in heads]


def index_of(ids: Sequence[int], heads: Sequence[Head], names: Sequence[str]) -> pd.DataFrame:
    """The columns that name a row: prompt, token, layer and head."""
    index = pd.MultiIndex.from_product([list(ids), list(heads), names], names=["prompt", "where", "token"])
    rows = index.to_frame(index=False)
    rows[["layer", "head"]] = rows.pop("where").tolist()
    return rows


@measures(ShapedAttention)
def measure_shaped_attention(bench: Workbench, request: ShapedAttention) -> Evidence:
    """A row per prompt, head and token."""
    pairs, ids, heads = bench.prompts.encode(request.prompts), request.prompts.ids, request.heads
    names, keys = tokens_before(pairs.prompts, ids, request.at)
    before: list[Tensor] = []
    after: list[Tensor] = []
    changes: list[Tensor] = []
    for part in prompt_blocks(bench.surgeon, pairs.prompts):
        clean, noise = pairs.prompts[part], pairs.counterfactuals[part]
        recording, noisy = (bench.surgeon.record(token_batch(side)) for side in (clean, noise))
        reads = reads_of(clean, heads, request.at, keys[part])
        senders = [(head.layer, head.head, head.role) for head in request.from_noise]
        outputs = [
            Read("z", layer, positions=positions(clean, role)[:, None], heads=[head]) for layer, head, role in senders
        ]
        new, old = bench.surgeon.run(noisy, [], outputs), bench.surgeon.run(recording, [], outputs)
        edits = [
            Edit("z", layer, value, positions=positions(clean, role)[:, None], heads=[head])
            for (layer, head, role), value in zip(senders, new, strict=True)
        ]
        patterns = sweep(bench.surgeon, recording, [[], edits], reads, allow_noop=True)
        unedited, edited = torch.cat([pattern.cpu() for pattern in patterns], dim=2)  # (prompt, head, token) each
        before.append(unedited)
        after.append(edited)
        change = [relative_change(*values).flatten(1).amax(1).cpu() for values in zip(new, old, strict=True)]
        changes.append(torch.stack(change).amax(0))  # (prompt,)
    rows = index_of(ids, heads, names)
    rows["before"], rows["after"] = (torch.cat(parts).flatten().numpy() for parts in (before, after))
    rows["relative_change"] = torch.cat(changes).repeat_interleave(len(heads) * len(names)).numpy()
    return SHAPED.evidence(rows, {"at": request.at})


@measures(AttentionToRoles)
def measure_attention(bench: Workbench, request: AttentionToRoles) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    return measure_heads(bench.surgeon, prompts, request.prompts.ids, request.heads, request.at)
