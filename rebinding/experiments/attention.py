"""Attention of heads, in unedited prompts and where earlier heads send what they do in a noise prompt.

It is measured from one token on every earlier token with a role.

A token is named by its function in the prompt if it has one (`swap_asked`), else by its place without the number
(`context_box`: the label of a box that is not mentioned again), so that a name means the same in every prompt. The
heads' own token is skipped: attention on it reads nothing from elsewhere.

Rules get one number per prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import Stories, draw_noise_pairs
from rebinding.experiments.tokens import attention_on, positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoded, PromptError
from rebinding.task.text import FUNCTIONS
from rebinding.verdicts.estimates import Array

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


def names_before(prompt: Encoded, role: str) -> dict[str, int]:
    """Every token with a role before that of `role`, by name."""
    end = prompt.roles[role]
    by_function = {name: prompt.roles[name] for name in FUNCTIONS if name in prompt.roles}
    places = {name: at for name, at in prompt.roles.items() if at not in by_function.values()}
    by_place = {name.partition("[")[0]: at for name, at in places.items()}
    if len(by_place) < len(places):
        story = prompt.prompt.story
        raise PromptError(f"several tokens of {story} would have one name; ask where at most one box stands aside")
    return {name: at for name, at in sorted({**by_place, **by_function}.items()) if at < end}


ATTENTION = Kind("attention", ("prompt", "layer", "head", "token", "attention", "uniform"))
"""A head's attention on a token of a prompt, by the name of its role. `uniform` is the token's share if the head
attends equally to every token that it can see."""
SHAPED = Kind(
    "shaped-attention",
    ("prompt", "layer", "head", "token", "before", "after", "relative_change"),
    edit_columns=("prompt",),
)
"""The same before and after other heads get their outputs from a noise prompt; `relative_change` is the largest change
of these outputs."""
ROLES = ("context_partner_object", "swap_asked")
"""Roles of prompts whose question is about a swapped box."""


@dataclass(frozen=True)
class AttentionToRoles(OnPrompts):
    """The attention of some heads at one role on the tokens of other roles."""

    KIND: ClassVar[Kind] = ATTENTION
    heads: tuple[Head, ...]
    at: str

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"at": self.at, "heads": len(self.heads), **self.prompts.facets}


@dataclass(frozen=True)
class ShapedAttention(OnPrompts):
    """The attention of some heads at one role on the tokens of other roles, before and after the heads `from_noise`
    get their outputs, each at its own role, from a noise prompt. Nothing is frozen."""

    KIND: ClassVar[Kind] = SHAPED
    heads: tuple[Head, ...]
    at: str
    from_noise: tuple[CircuitHead, ...]

    @property
    def facets(self) -> Mapping[str, Facet]:
        facets: dict[str, Facet] = {"at": self.at, "heads": len(self.heads), "from noise": len(self.from_noise)}
        return facets | {"noise": self.prompts.pairing[-1], **self.prompts.facets}


def request_shaped_attention(
    prompts: Stories, design: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> ShapedAttention:
    """Request the attention of group C with group D from the noise prompt, in the pairs of path patching that discovery
    did not use, whatever the design of the run."""
    pairs, senders = draw_noise_pairs(prompts, conventions, n, prompts.evaluation), circuit.groups["D"]
    return ShapedAttention(pairs, circuit.group("C"), ROLE_OF_GROUP["C"], senders)


def request_attention(
    prompts: Stories, design: Design, circuit: Circuit, n: int, *, group: Group, like: ProcedureName
) -> AttentionToRoles:
    """Request the attention of a group from its token, in the stories of the run, or in counterbalanced ones: no slot
    and no order of names is more frequent than another."""
    stories = prompts.design("counterbalanced") if like == "controlled" else design
    return AttentionToRoles(
        prompts.draw_with(stories, prompts.evaluation, n, ROLES), circuit.group(group), ROLE_OF_GROUP[group]
    )


def measure_heads(
    surgeon: Surgeon, prompts: Sequence[Encoded], ids: Sequence[int], heads: Sequence[Head], at: str
) -> Evidence:
    """A row per prompt, head and token."""
    names, keys = tokens_before(prompts, ids, at)
    parts = []
    for where in prompt_blocks(surgeon, prompts):
        read = read_attention(prompts[where], heads, at, keys[where])
        parts += surgeon.run(surgeon.record(token_batch(prompts[where])), [], [read])
    attention = torch.cat(parts).cpu()  # (prompt, head, token)
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


def read_attention(prompts: Sequence[Encoded], heads: Sequence[Head], at: str, keys: Tensor) -> Read:
    """Read the attention of heads at one token on the keys: (prompt, head, token)."""
    return Read("pattern", positions(prompts, at)[:, None], heads, reduce=attention_on(keys))


def index_of(ids: Sequence[int], heads: Sequence[Head], names: Sequence[str]) -> pd.DataFrame:
    """The columns that name a row: prompt, token, layer and head."""
    index = pd.MultiIndex.from_product([list(ids), list(heads), names], names=["prompt", "where", "token"])
    rows = index.to_frame(index=False)
    rows[["layer", "head"]] = rows.pop("where").tolist()
    return rows


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
        read = read_attention(clean, heads, request.at, keys[part])
        senders = [(head.layer, head.head, head.role) for head in request.from_noise]
        outputs = [Read("z", at=positions(clean, role)[:, None], head=[(layer, head)]) for layer, head, role in senders]
        new, old = bench.surgeon.run(noisy, [], outputs), bench.surgeon.run(recording, [], outputs)
        edits = [
            Edit("z", value, at=positions(clean, role)[:, None], head=[(layer, head)])
            for (layer, head, role), value in zip(senders, new, strict=True)
        ]
        (patterns,) = bench.surgeon.sweep(recording, [[], edits], [read], allow_noop=True)
        unedited, edited = patterns.cpu()  # (prompt, head, token) each
        before.append(unedited)
        after.append(edited)
        change = [relative_change(*values).flatten(1).amax(1).cpu() for values in zip(new, old, strict=True)]
        changes.append(torch.stack(change).amax(0))  # (prompt,)
    rows = index_of(ids, heads, names)
    rows["before"], rows["after"] = (torch.cat(parts).flatten().numpy() for parts in (before, after))
    rows["relative_change"] = torch.cat(changes).repeat_interleave(len(heads) * len(names)).numpy()
    return SHAPED.evidence(rows, {"at": request.at})


def measure_attention(bench: Workbench, request: AttentionToRoles) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    return measure_heads(bench.surgeon, prompts, request.prompts.ids, request.heads, request.at)


def by_token(evidence: Evidence, column: str = "attention") -> Mapping[str, Array]:
    """The heads' mean attention on every token, by prompt: of unedited prompts, or `before` and `after` an edit."""
    means = evidence.rows.groupby(["token", "prompt"])[column].mean()
    return {str(name): means.loc[name].sort_index().to_numpy(np.float64) for name in means.index.unique("token")}


def even(evidence: Evidence) -> Array:
    """The share of every token if heads attend equally to all tokens, by prompt."""
    shares: Array = evidence.rows.groupby("prompt")["uniform"].first().sort_index().to_numpy(np.float64)
    return shares
