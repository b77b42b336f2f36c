"""Requests for attention: in unedited prompts, and where earlier heads send what they do in a noise prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.paths.request import draw_noise_pairs
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.task.designs import Design

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
    prompts: Prompts, design: Design, circuit: Circuit, n: int, *, conventions: CircuitConventions
) -> ShapedAttention:
    """Request the attention of group C with group D from the noise prompt, in the pairs of path patching that discovery
    did not use, whatever the design of the run."""
    pairs, senders = draw_noise_pairs(prompts, conventions, n, prompts.evaluation), circuit.groups["D"]
    return ShapedAttention(pairs, circuit.group("C"), ROLE_OF_GROUP["C"], senders)


def request_attention(
    prompts: Prompts, design: Design, circuit: Circuit, n: int, *, group: Group, like: ProcedureName
) -> AttentionToRoles:
    """Request the attention of a group from its token, in the stories of the run, or in counterbalanced ones: no slot
    and no order of names is more frequent than another."""
    stories = prompts.design("counterbalanced") if like == "controlled" else design
    return AttentionToRoles(
        prompts.draw_with(stories, prompts.evaluation, n, ROLES), circuit.group(group), ROLE_OF_GROUP[group]
    )
