"""Requests for attention in unedited prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import ProcedureName
from rebinding.task.designs import Design

ATTENTION = Kind("attention", ("prompt", "layer", "head", "token", "attention", "uniform"))
"""A head's attention on a token of a prompt, by the name of its role. `uniform` is the token's share if the head
attends equally to every token that it can see."""
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


def request_attention(
    prompts: Prompts, design: Design, circuit: Circuit, n: int, *, group: Group, like: ProcedureName
) -> AttentionToRoles:
    """Request the attention of a group from its token, in the stories of the run, or in counterbalanced ones: no slot
    and no order of names is more frequent than another."""
    stories = prompts.design("counterbalanced") if like == "controlled" else design
    return AttentionToRoles(
        prompts.draw_with(stories, prompts.evaluation, n, ROLES), circuit.group(group), ROLE_OF_GROUP[group]
    )
