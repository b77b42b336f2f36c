"""Which block of a request is rehearsed, and which requests cost the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from rebinding.evidence import OnPrompts, PromptSet, Request
from rebinding.experiments.binding.request import Exchange, MeanVectors, Shifts
from rebinding.experiments.circuit.request import Means, Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import EncodedPrompts, Prompts
from rebinding.experiments.swap_labels.request import LabelExchange
from rebinding.experiments.tokens import BLOCK
from rebinding.experiments.tracing.request import OfMode
from rebinding.paper.circuit import CircuitHead
from rebinding.task.prompts import Encoded

TRACED = (("tracing",), ("questions",))
"""Pairings of section 3."""
STEPS = 16
"""Heads at the most whose removal is rehearsed: each step of a walk is a batch like the others."""


@dataclass(frozen=True)
class Part:
    """A request on the first block of its prompts. `block` of `n` prompts are rehearsed, and what is run of each block
    stands for `repeats` times as much."""

    request: Request
    n: int
    block: int
    repeats: float = 1

    @property
    def blocks(self) -> int:
        """How many blocks there are; the last one may be smaller."""
        return -(-self.n // self.block)

    @property
    def share(self) -> float:
        """How much more the whole request takes."""
        return self.repeats * self.n / self.block


def first_block(request: Request, prompts: Prompts) -> Part:
    """The part of a request that stands for it. Of several sets of directions one is rehearsed, since all of them edit
    the same places of the same prompts; of a long walk of pruning some steps."""
    if isinstance(request, MeanVectors):
        block = min(request.n, BLOCK)
        slots = tuple(_first(one, block, prompts) for one in request.slots)
        return Part(replace(request, slots=slots), request.n, block)
    if not isinstance(request, OnPrompts):
        raise TypeError(f"{request.KIND.name} is a request on no prompts; say here which part of it is rehearsed")
    n = len(request.prompts.ids)
    block = min(n, _size(request, prompts) or n)
    part, repeats = request.on(_first(request.prompts, block, prompts)), 1.0
    if isinstance(part, Shifts):
        part, repeats = replace(part, batches=part.batches[:1]), len(part.batches)
    if isinstance(part, LabelExchange):
        part, repeats = replace(part, batches=part.batches[:1]), len(part.batches)
    if isinstance(part, Pruning) and len(part.circuit) > STEPS:
        some = part.circuit[:: -(-len(part.circuit) // STEPS)]
        repeats = (len(part.circuit) + 1) / (len(some) + 1)  # a walk scores once before its first step
        part = replace(part, circuit=some)
    if isinstance(part, Exchange):
        part = replace(part, donors=tuple(_first(one, block, prompts) for one in part.donors))
    return Part(part, n, block, repeats)


def _size(request: OnPrompts, prompts: Prompts) -> int | None:
    """How many prompts a block has; None: all of them. Section 5 edits prompts in whole balanced blocks."""
    if isinstance(request, (Pruning, Means)):
        return None
    if isinstance(request, (Shifts, Exchange)) and request.prompts.design == "counterbalanced":
        return prompts.plan(request.prompts).block
    return request.block or BLOCK


def _first(whole: PromptSet, block: int, prompts: Prompts) -> PromptSet:
    return prompts.add(prompts.encode(whole).part(0, block))


def shape_of(request: Request, prompts: Prompts) -> Hashable:
    """What the cost of a request depends on. Requests on other words, with the same tokens in the same places, cost the
    same; of heads that receive or are pruned it counts how many there are at each layer."""
    if isinstance(request, Paths):
        layers = Counter(layer for layer, _ in request.receivers)
        return _shape(replace(request, receivers=()), prompts), tuple(sorted(layers.items()))
    if isinstance(request, MeanVectors):  # read where slots stand, whatever is asked
        lengths = tuple(tuple(map(len, prompts.encode(one).prompts)) for one in request.slots)
        return _shape(replace(request, slots=()), prompts), lengths
    if isinstance(request, Pruning):
        circuit = sorted((one.group, one.layer, one.role) for one in request.circuit)
        return _shape(replace(request, circuit=()), prompts), tuple(circuit)
    if isinstance(request, OfMode):  # its words; what differs in its pairs is in the prompts
        return _shape(replace(request, mode="swap_only"), prompts)
    return _shape(request, prompts)


def _shape(value: Any, prompts: Prompts) -> Hashable:
    if isinstance(value, PromptSet):
        return _layout(prompts.encode(value))
    if isinstance(value, CircuitHead):
        return value
    if isinstance(value, tuple):
        return tuple(_shape(one, prompts) for one in value)
    if is_dataclass(value):
        return type(value).__name__, *(_shape(getattr(value, one.name), prompts) for one in fields(value))
    return value  # type: ignore[no-any-return]  # the plain values of a frozen, hashable request


def _layout(drawn: EncodedPrompts) -> Hashable:
    """The tokens of prompts without their words: lengths, places of roles, numbers of objects; and the tokens in which
    pairs differ, where residuals are exchanged between them."""
    pairing = drawn.request.pairing[:1]
    exchanged = drawn.counterfactuals if pairing in TRACED else ()
    others: tuple[Encoded | None, ...] = exchanged or (None,) * len(drawn.prompts)
    places = [_places(own, other) for own, other in zip(drawn.prompts, others, strict=True)]
    return pairing, drawn.request.cut, tuple(sorted(places)), tuple(sorted(Counter(drawn.sizes).items()))


def _places(own: Encoded, other: Encoded | None) -> tuple[Any, ...]:
    differs = (
        ()
        if other is None
        else tuple(at for at, (one, changed) in enumerate(zip(own.ids, other.ids, strict=False)) if one != changed)
    )
    objects = sum(word is not None for word in own.prompt.story.state().values())
    return len(own), tuple(sorted(own.roles.items())), differs, objects
