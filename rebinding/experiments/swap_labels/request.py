"""Requests for keys at the labels of a swap. Not simulated: the paper says nothing of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.experiments.prompts import DIRECTIONS_ID, Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import BindingConventions
from rebinding.surgery.sites import Scope
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import Design

LABEL_EXCHANGE = Kind(
    "swap_labels",
    ("prompt", "i", "j", "draw", "layer", "head", "relative_change"),
    numbered=r"(before|after)_(label|logit)_[ij]",
    edit_columns=(),  # as in section 5: a direction of size zero is a finding
)
LABEL_VECTORS = Kind("swap_label_directions", ())
NAMED = ("swap_asked", "swap_partner")
"""Roles of prompts that ask about a box of the swap: its two labels."""
PROMPTS_OF_LABELS = 36
"""Prompts of a set of directions: 24 keys of every slot, since each prompt names two of three."""


@dataclass(frozen=True)
class LabelVectors(OnPrompts):
    """Mean keys of some heads at the labels of a swap, by the slot of the box that a label names."""

    KIND: ClassVar[Kind] = LABEL_VECTORS
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class LabelExchange(OnPrompts):
    """The keys at both labels of a swap exchanged along their directions, once with every one of `batches`, which were
    measured on disjoint sets of prompts."""

    KIND: ClassVar[Kind] = LABEL_EXCHANGE
    batches: tuple[LabelVectors, ...]
    heads: tuple[Head, ...]
    scope: Scope
    answers: AnswerRule


def request_label_exchange(
    prompts: Prompts, design: Design, circuit: Circuit, n: int, *, conventions: BindingConventions
) -> LabelExchange:
    """Request exchanges of keys of group B in counterbalanced stories, whatever the design of the run: they cross which
    label is named first with the slot of its box."""
    stories, heads = prompts.design("counterbalanced", split="evaluation"), circuit.group("B")
    starts = range(DIRECTIONS_ID, DIRECTIONS_ID + conventions.batches * 2 * PROMPTS_OF_LABELS, 2 * PROMPTS_OF_LABELS)
    return LabelExchange(
        prompts=prompts.draw_with(stories, prompts.evaluation, n, NAMED),
        batches=tuple(request_label_vectors(prompts, heads, start) for start in starts),
        heads=heads,
        scope=conventions.scope,
        answers=conventions.answers,
    )


def request_label_vectors(prompts: Prompts, heads: Sequence[Head], first: int) -> LabelVectors:
    """Request directions from prompts with other words; two thirds of the ids ask about a box of the swap."""
    stories = prompts.design("counterbalanced", split="directions")
    return LabelVectors(prompts.draw_with(stories, first, PROMPTS_OF_LABELS, NAMED), tuple(heads))
