"""What can be requested of the unedited model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.experiments.answers import MEASURES
from rebinding.experiments.prompts import Prompts
from rebinding.task.answers import AnswerSet
from rebinding.task.designs import Design

ABILITY = Kind("ability", ("prompt", *MEASURES))
REPLAYS = Kind("replays", ("prompt", "layer", "token", "off", "allowed"))
FLOORS = Kind("floors", ("prompt", "company", "layer", "token", "logit", "lead"))
NULL_EDIT = ["company", "layer", "token"]
UNTOUCHED = (-1, -1)
"""Stands for the layer and the token of a prompt that is not replayed at all."""
REPLAYED_PROMPTS = 2
"""A kind of layer that is replayed wrongly is so on any prompt."""
FLOOR_PROMPTS, IN_16_BITS = 8, 100
"""What n prompts have in common is known to t(0.95, n - 1) / sqrt(n) of what one of them spreads: 0.67 of eight, which
is plenty where rounding is 1e-5 of what counts, and 0.17 of a hundred, where it is half of it."""


@dataclass(frozen=True)
class Ability(OnPrompts):
    """The unedited model; `answers` says which tokens stand for an object."""

    KIND: ClassVar[Kind] = ABILITY
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Replays(OnPrompts):
    """Unedited prompts, replayed from two places each."""

    KIND: ClassVar[Kind] = REPLAYS


@dataclass(frozen=True)
class Floors(OnPrompts):
    """Unedited prompts, together and alone, and replayed from several places with nothing added."""

    KIND: ClassVar[Kind] = FLOORS


def request_ability(prompts: Prompts, drawn: Design, n: int, cut: int = 0) -> Ability:
    """The unedited model on evaluation prompts. In prompts that are short of their end no "Answer:" stands before the
    answer, and a word counts in either form."""
    return Ability(prompts.draw(drawn, prompts.range_of(n), cut=cut), "exp2_aliases" if cut else "continuation")


def request_replays(prompts: Prompts, drawn: Design) -> Replays:
    """The first evaluation prompts."""
    return Replays(prompts.draw(drawn, prompts.range_of(REPLAYED_PROMPTS)))


def request_floors(prompts: Prompts, drawn: Design, dtype: str) -> Floors:
    """The first evaluation prompts; more of them in a dtype in which chance alone would make a large bound."""
    n = IN_16_BITS if dtype in ("bfloat16", "float16") else FLOOR_PROMPTS
    return Floors(prompts.draw(drawn, prompts.range_of(n)))
