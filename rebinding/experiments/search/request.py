"""Requests for position-free discovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.ablation import DRAWS, VARIANT, Means, request_means
from rebinding.experiments.prompts import DISCOVERY_ID, Stories
from rebinding.experiments.search.graph import Node
from rebinding.experiments.tokens import MEASURES
from rebinding.paper.circuit import Circuit
from rebinding.surgery.sites import check_word
from rebinding.task.designs import Design

STEPS = Kind(
    "search steps",
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
        "relative_change",
    ),
)
"""A row for a prompt and a sender (head at a token) that was run: the score before and after, and the share of the
residual stream that the receivers rewrite (`relative_change`). `component` is `direct` if the receiver is the logits.
Senders without a row cannot change the score, or not by the threshold."""
LOSSES = Kind("search losses", ("prompt", "clean", "noise"))
"""A row for a prompt: its score, and that of its noise prompt."""
CROSSINGS = Kind("crossings", ("prompt", "crossing", "expected_tokens", "other_tokens"))
"""A row for a prompt and a crossing from one part of it to a later one: the loss of score without the outputs of
senders at the expected tokens of the first part, and without those at its other tokens."""
SEARCHED = Kind("searched circuit", ("prompt", *VARIANT, *MEASURES))
"""An ablation of the circuit that a search finds; the columns are those of every ablation."""
NOISE = "independent"
PROMPTS = 36
"""A balanced block of three boxes and one swap."""
Screen: TypeAlias = Literal["first-order", "edge-attribution", "integrated-edge-attribution", "none"]
"""What leaves out rows that could change the score: a first-order estimate from the receivers' exact change, or one of
the whole edge (`rebinding.surgery.slopes`); or nothing."""


@dataclass(frozen=True)
class SearchSettings:
    """Which senders are selected, and which are skipped.

    A sender is selected if its effect differs significantly from 0 (at error rate `alpha` over all senders of a step)
    and is at least `share` of the total loss: the score that the noise prompt loses. `min_attention` skips places that
    no receiver attends to that much in any prompt of a block; 0 skips none. With `screen="first-order"` rows are
    skipped whose effect is small by a first-order estimate, and on later blocks senders with almost no effect on the
    first; with `"edge-attribution"` and `"integrated-edge-attribution"` rows whose effect is small by an estimate of
    the whole edge; `"none"` runs them all. Only with `screen="none"` and `min_attention=0` is every skipped row one
    that cannot have an effect. `block` is the number of prompts that run together. With `mlps` MLPs are nodes too, and
    an edge leads through no other MLP.
    """

    share: float = 0.02
    alpha: float = 0.01
    min_attention: float = 0.01
    screen: Screen = "first-order"
    block: int = 12
    mlps: bool = False

    def __post_init__(self) -> None:
        check_word("screen", self.screen, get_args(Screen))
        if not (0 < self.share < 1 and 0 < self.alpha < 1 and 0 <= self.min_attention < 1 and self.block >= 1):
            raise ValueError(
                f"{self}: share and alpha lie between 0 and 1, min_attention from 0 to 1, block is at least 1"
            )


@dataclass(frozen=True)
class Step(OnPrompts):
    """One step of a search on a block of prompts: the effect of senders on the score via some receivers, or the direct
    effect if there are none; `allowed` senders, all if None."""

    KIND: ClassVar[Kind] = STEPS
    PER_PROMPT: ClassVar[bool] = False
    receivers: tuple[Node, ...]
    allowed: tuple[Node, ...] | None
    settings: SearchSettings


@dataclass(frozen=True)
class Losses(OnPrompts):
    """The scores of clean and noise prompts; their difference is the total loss."""

    KIND: ClassVar[Kind] = LOSSES
    PER_PROMPT: ClassVar[bool] = False


@dataclass(frozen=True)
class Crossings(OnPrompts):
    """The tokens by which information passes from part to part, among the nodes that a search finds on other
    prompts."""

    KIND: ClassVar[Kind] = CROSSINGS
    PER_PROMPT: ClassVar[bool] = False
    searched: PromptSet
    settings: SearchSettings

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"share": f"{self.settings.share:g}", "searched": len(self.searched.ids), **self.prompts.facets}


@dataclass(frozen=True)
class SearchedCircuit(OnPrompts):
    """The full model, the nodes that a search finds on other prompts with all other heads mean-ablated, and random
    circuits with as many heads at each token in each layer."""

    KIND: ClassVar[Kind] = SEARCHED
    PER_PROMPT: ClassVar[bool] = False
    searched: PromptSet
    settings: SearchSettings
    means: Means
    draws: int

    @property
    def facets(self) -> Mapping[str, Facet]:
        facets: dict[str, Facet] = {"share": f"{self.settings.share:g}", "searched": len(self.searched.ids)}
        return {**facets, "means": self.means.prompts.design, **self.prompts.facets}


def search_prompts(prompts: Stories, stories: Design) -> PromptSet:
    """The prompts of a search; in a counterbalanced design whole blocks are balanced."""
    return prompts.draw(stories, range(DISCOVERY_ID, DISCOVERY_ID + PROMPTS), ("noise", NOISE))


def request_crossings(prompts: Stories, design: Design, circuit: Circuit, n: int) -> Crossings:
    """Request the crossings in questions about a swapped box, on prompts that the search did not use."""
    balanced = prompts.design("counterbalanced")
    pairs = prompts.draw_with(balanced, prompts.evaluation, n, ("swap_asked",), ("noise", NOISE))
    return Crossings(pairs, search_prompts(prompts, balanced), SearchSettings())


def request_searched_circuit(prompts: Stories, design: Design, circuit: Circuit, n: int) -> SearchedCircuit:
    """Request the ablation of a searched circuit in questions about a swapped box, on prompts and words that the search
    did not use. Means are over counterbalanced stories: no slot and no order of names is more frequent than another."""
    balanced, held_out = (prompts.design("counterbalanced", split=split) for split in ("discovery", "evaluation"))
    chosen = prompts.draw_with(held_out, prompts.evaluation, n, ("swap_asked",))
    means = request_means(prompts, balanced, "counterbalanced")
    return SearchedCircuit(chosen, search_prompts(prompts, balanced), SearchSettings(), means, DRAWS)
