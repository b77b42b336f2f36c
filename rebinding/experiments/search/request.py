"""What can be requested of position-free discovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.answers import MEASURES
from rebinding.experiments.circuit.request import DRAWS, VARIANT, Means, request_means
from rebinding.experiments.prompts import DISCOVERY_ID, Prompts
from rebinding.paper.circuit import Circuit
from rebinding.paper.graph import Node
from rebinding.task.designs import Design

STEPS = Kind(
    "anywhere",
    (
        "prompt",
        "component",
        "layer",
        "head",
        "token",
        "place",
        "function",
        "before",
        "after",
        "moved",
    ),
)
"""A row for a prompt and a sender (head at a token) that was run: the score before and after, and how far the receivers
moved (what they write anew, as a share of the residual there). `component` is `direct` where the receiver is the
logits. Senders without a row cannot change the score, or not by as much as anybody asks for."""
LOSSES = Kind("anywhere-losses", ("prompt", "clean", "noise"))
"""A row for a prompt: its score, and that of its noise prompt."""
CROSSINGS = Kind("crossings", ("prompt", "crossing", "expected", "elsewhere"))
"""A row for a prompt and a crossing from one part of it to a later one: what of the score is lost without the messages
that leave from the expected tokens of the first part, and without those that leave from its other tokens."""
SEARCHED = Kind("searched circuit", ("prompt", *VARIANT, *MEASURES))
"""An ablation of the circuit that a search finds; the columns are those of every ablation."""
NOISE = "independent"
PROMPTS = 36
"""A balanced block of three boxes and one swap."""


@dataclass(frozen=True)
class Settings:
    """What is kept, and what is not looked at.

    A sender is kept if its effect surely (at error rate `alpha` over all senders of a step) differs from 0 and is at
    least `share` of the whole: the score that is lost if everything is as in the noise prompt. `listens` leaves out
    places to which no receiver gives that much attention in any prompt of a block; 0 leaves out none. `exhaustive` runs
    rows that a guess rules out. `block` prompts run at once.
    """

    share: float = 0.02
    alpha: float = 0.01
    listens: float = 0.01
    exhaustive: bool = False
    block: int = 12

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and 0 < self.alpha < 1 and 0 <= self.listens < 1 and self.block >= 1):
            raise ValueError(f"{self}: share and alpha lie between 0 and 1, listens from 0 to 1, block is at least 1")


@dataclass(frozen=True)
class Step(OnPrompts):
    """One step of a search on a block of prompts: what senders do to the score through some receivers, or through the
    logits if there are none; `allowed` senders, all if None."""

    KIND: ClassVar[Kind] = STEPS
    receivers: tuple[Node, ...]
    allowed: tuple[Node, ...] | None
    how: Settings


@dataclass(frozen=True)
class Losses(OnPrompts):
    """What a score loses if everything is as in the noise prompt."""

    KIND: ClassVar[Kind] = LOSSES


@dataclass(frozen=True)
class Crossings(OnPrompts):
    """By which tokens information goes on from part to part, among the nodes that a search finds on other prompts."""

    KIND: ClassVar[Kind] = CROSSINGS
    searched: PromptSet
    how: Settings

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"share": f"{self.how.share:g}", "searched": len(self.searched.ids), **self.prompts.facets}


@dataclass(frozen=True)
class SearchedCircuit(OnPrompts):
    """The full model, and the nodes that a search finds on other prompts with all other heads held at their mean;
    beside it random circuits with as many heads at each token in each layer."""

    KIND: ClassVar[Kind] = SEARCHED
    searched: PromptSet
    how: Settings
    means: Means
    draws: int

    @property
    def facets(self) -> Mapping[str, Facet]:
        found: dict[str, Facet] = {"share": f"{self.how.share:g}", "searched": len(self.searched.ids)}
        return {**found, "means": self.means.prompts.design, **self.prompts.facets}


def search_prompts(prompts: Prompts, drawn: Design) -> PromptSet:
    """The prompts that a search finds nodes on; of a counterbalanced design whole blocks are balanced."""
    return prompts.draw(drawn, range(DISCOVERY_ID, DISCOVERY_ID + PROMPTS), ("noise", NOISE))


def request_crossings(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> Crossings:
    """Questions about a box that is swapped, on prompts that the search did not see."""
    even = prompts.design("counterbalanced")
    shown = prompts.draw_with(even, prompts.evaluation, n, ("swap_asked",), ("noise", NOISE))
    return Crossings(shown, search_prompts(prompts, even), Settings())


def request_searched_circuit(prompts: Prompts, drawn: Design, circuit: Circuit, n: int) -> SearchedCircuit:
    """Questions about a box that is swapped, on prompts and in words that the search did not see; at means over stories
    in which no slot and no order of names is more frequent than another."""
    even, held_out = (prompts.design("counterbalanced", split=split) for split in ("discovery", "evaluation"))
    shown = prompts.draw_with(held_out, prompts.evaluation, n, ("swap_asked",))
    means = request_means(prompts, even, "counterbalanced")
    return SearchedCircuit(shown, search_prompts(prompts, even), Settings(), means, DRAWS)
