"""How much of their attention heads give, from one token, to every earlier token that has a role.

A token is called by what it does in its prompt where it does something (`swap_asked`), else by its place without the
number (`context_box`: that of a box nobody mentions again), so that a name means the same in every prompt. The token
at which the heads stand is left out: attention that rests there looks at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.attention.kinds import LOOKS
from rebinding.experiments.readout import BLOCK, attention_on, blocks
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.circuit import Head
from rebinding.surgery import Read, Surgeon
from rebinding.world.places import FUNCTIONS
from rebinding.world.prompts import Encoded, PromptError


@dataclass(frozen=True)
class Looks(OnPrompts):
    """The attention of some heads at one role on the tokens of the others."""

    KIND: ClassVar[Kind] = LOOKS
    heads: tuple[Head, ...]
    at: str

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"at": self.at, "heads": len(self.heads), **self.prompts.facets}


def names_before(prompt: Encoded, role: str) -> dict[str, int]:
    """Every token with a role before that of `role`, by name."""
    end = prompt.roles[role]
    doing = {name: prompt.roles[name] for name in FUNCTIONS if name in prompt.roles}
    places = {name: at for name, at in prompt.roles.items() if at not in doing.values()}
    plain = {name.partition("[")[0]: at for name, at in places.items()}
    if len(plain) < len(places):
        story = prompt.prompt.story
        raise PromptError(f"several tokens of {story} would have one name; ask where at most one box stands aside")
    return {name: at for name, at in sorted({**plain, **doing}.items()) if at < end}


def look(surgeon: Surgeon, prompts: Sequence[Encoded], ids: Sequence[int], heads: Sequence[Head], at: str) -> Evidence:
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
    return LOOKS.evidence(rows, {"at": at})


def _attention(surgeon: Surgeon, prompts: Sequence[Encoded], heads: Sequence[Head], at: str, keys: Tensor) -> Tensor:
    """(prompt, head, token)"""
    where, take = positions(prompts, at)[:, None], attention_on(keys)
    reads = [Read("pattern", layer, positions=where, heads=[head], take=take) for layer, head in heads]
    return torch.cat([one.cpu() for one in surgeon.run(surgeon.record(token_batch(prompts)), [], reads)], dim=1)
