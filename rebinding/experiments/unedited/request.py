"""Requests for the unedited model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts
from rebinding.experiments.answers import MEASURES
from rebinding.experiments.prompts import Prompts
from rebinding.task.answers import AnswerSet
from rebinding.task.designs import Design

ABILITY = Kind("ability", ("prompt", *MEASURES))
REPLAYS = Kind("replays", ("prompt", "layer", "token", "difference", "tolerance"))
FLOORS = Kind("floors", ("prompt", "company", "layer", "token", "logit", "lead"))
NULL_EDIT = ["company", "layer", "token"]
UNTOUCHED = (-1, -1)
"""The layer and the token in rows of prompts without a replay."""
REPLAYED_PROMPTS = 2
"""Few are enough: a wrong replay of a kind of layer is wrong on any prompt."""
FLOOR_PROMPTS, IN_16_BITS = 8, 100
"""The mean over n prompts is known to t(0.95, n - 1) / sqrt(n) of their spread: 0.67 for eight, which is enough if
rounding is 1e-5 of the effects that count, and 0.17 for a hundred, if it is half of them."""


@dataclass(frozen=True)
class Ability(OnPrompts):
    """The answers of the unedited model; `answers` gives the tokens of an object."""

    KIND: ClassVar[Kind] = ABILITY
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Replays(OnPrompts):
    """Unedited prompts, replayed from two places each."""

    KIND: ClassVar[Kind] = REPLAYS


@dataclass(frozen=True)
class Floors(OnPrompts):
    """Unedited prompts, together and alone, and replayed from several places without a change."""

    KIND: ClassVar[Kind] = FLOORS


def request_ability(prompts: Prompts, design: Design, n: int, cut: int = 0) -> Ability:
    """Request the unedited model on evaluation prompts. Cut prompts have no "Answer:" before the answer, and a word
    counts in either form."""
    return Ability(prompts.draw(design, prompts.range_of(n), cut=cut), "exp2_aliases" if cut else "continuation")


def request_replays(prompts: Prompts, design: Design) -> Replays:
    """Request replays of the first evaluation prompts."""
    return Replays(prompts.draw(design, prompts.range_of(REPLAYED_PROMPTS)))


def request_floors(prompts: Prompts, design: Design, dtype: str) -> Floors:
    """Request the noise floor on the first evaluation prompts; on more in a dtype whose rounding makes a wide bound."""
    n = IN_16_BITS if dtype in ("bfloat16", "float16") else FLOOR_PROMPTS
    return Floors(prompts.draw(design, prompts.range_of(n)))
