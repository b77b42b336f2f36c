"""Plants: a mechanism, written into a model of some architecture, with what is known about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

from rebinding.paper.circuit import CircuitHead
from rebinding.planted.compiler.architectures import ARCHITECTURES
from rebinding.planted.compiler.compile import Compiled, compile_wiring
from rebinding.planted.compiler.linter import lint
from rebinding.planted.compiler.packing import Seat
from rebinding.planted.language.template import check_prompt, check_tokenizer
from rebinding.planted.language.wiring import Softness, Wiring, WiringError
from rebinding.planted.mechanisms import global_, lexical, pointer, recency
from rebinding.planted.printed import pointer_numbers
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.planted.truth import Truth, truth_of
from rebinding.planted.variants import Variant, variant_of
from rebinding.task.designs import DesignName
from rebinding.task.prompts import Encoded

MECHANISMS: Mapping[str, Callable[[int], Wiring]] = MappingProxyType(
    {"pointer": pointer.wiring, "global": global_.wiring, "recency": recency.wiring, "lexical": lexical.wiring}
)
MIN_BOXES, MAX_BOXES = 3, 7
GRADED = 0.75
"""The default softness: attention is graded, as in real models, and every answer is right with room to spare."""


@dataclass(frozen=True)
class Specification:
    """What is to be built. `boxes` is the largest number of boxes in a prompt, `softness` runs from 0 (hard) to 1,
    `decoys` bounds the number of heads with random weights (None: every head that has nothing else to do)."""

    mechanism: str
    architecture: str = "llama"
    variant: str | None = None
    boxes: int = 3
    softness: float = GRADED
    decoys: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise WiringError(f"there is no mechanism {self.mechanism!r}; there are {', '.join(MECHANISMS)}")
        if self.architecture not in ARCHITECTURES:
            raise WiringError(f"there is no architecture {self.architecture!r}; there are {', '.join(ARCHITECTURES)}")
        if not MIN_BOXES <= self.boxes <= MAX_BOXES:
            raise WiringError(f"a plant is made for {MIN_BOXES} to {MAX_BOXES} boxes; got {self.boxes}")
        if self.decoys is not None and self.decoys < 0:
            raise WiringError(f"decoys is a number of heads, or None for as many as fit; got {self.decoys}")
        Softness.of(self.softness)  # refuses what is out of range

    @property
    def name(self) -> str:
        """The name under which `parse` gives this specification again."""
        variant = f"+{self.variant}" if self.variant else ""
        given = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)[3:]
            if getattr(self, field.name) != field.default
        ]
        return f"planted:{self.mechanism}{variant}@{self.architecture}" + ("?" + "&".join(given) if given else "")


@dataclass(frozen=True, eq=False)
class Declared:
    """What a plant says of itself: its circuit, and what a paper about it would have printed."""

    specification: Specification
    circuit: tuple[CircuitHead, ...]
    printed: Mapping[str, float]

    @property
    def mechanism(self) -> str:
        return self.specification.mechanism

    @property
    def means(self) -> DesignName:
        """The stories over whose means a paper about it would have held other heads."""
        changed = self.specification.variant
        return variant_of(self.mechanism, changed).means if changed else "counterbalanced"

    @cached_property
    def truth(self) -> Mapping[str, Truth]:
        """What every row must come out as."""
        return truth_of(self.specification.mechanism, self.specification.variant)


@dataclass(frozen=True, eq=False)
class Plant(Declared):
    """A model and all that is known about it because we wrote it."""

    model: Any
    tokenizer: Any
    wiring: Wiring
    seats: tuple[Seat, ...]
    decoys: tuple[tuple[int, int], ...]

    @property
    def architecture(self) -> str:
        return self.specification.architecture

    @property
    def heads(self) -> dict[str, tuple[int, int]]:
        """(layer, head) of every line, by the line's name."""
        return {seat.line.name: (seat.line.layer, seat.head) for seat in self.seats}

    def check_prompt(self, prompt: Encoded) -> None:
        """Refuse a prompt that this plant was not made for."""
        check_prompt(prompt, self.specification.boxes, self.tokenizer.convert_tokens_to_ids("Context"))


def parse(text: str) -> Specification:
    """Read `[planted:]MECHANISM[+VARIANT][@ARCHITECTURE][?boxes=5&softness=0.5&decoys=0&seed=1]`."""
    found = re.fullmatch(r"(?:planted:)?([a-z]+)(?:\+([a-z_]+))?(?:@([a-z0-9]+))?(?:\?(.*))?", text.strip())
    if found is None:
        raise WiringError(f"{text!r} is not of the form MECHANISM[+VARIANT][@ARCHITECTURE][?boxes=5&softness=0.5]")
    mechanism, variant, architecture, options = found.groups()
    specification = Specification(mechanism, architecture or "llama", variant)
    kinds: dict[str, Any] = {"boxes": int, "softness": float, "decoys": int, "seed": int}
    forms = {int: r"[0-9]{1,9}", float: r"[0-9]{1,9}(\.[0-9]{1,9})?"}
    for option in (options or "").split("&") if options else ():
        name, _, value = option.partition("=")
        if name not in kinds or not re.fullmatch(forms[kinds[name]], value):
            raise WiringError(
                f"{option!r} in {text!r} is no option; write {', '.join(f'{known}=NUMBER' for known in kinds)};"
                " numbers are whole, but for softness"
            )
        specification = replace(specification, **{name: kinds[name](value)})
    return specification


def build(
    mechanism: str | Specification,
    architecture: str = "llama",
    *,
    boxes: int = 3,
    softness: float = GRADED,
    decoys: int | None = None,
    seed: int = 0,
    variant: str | None = None,
) -> Plant:
    """Write a plant's weights; a second call with the same arguments gives the same weights."""
    if isinstance(mechanism, str):
        mechanism = Specification(mechanism, architecture, variant, boxes, softness, decoys, seed)
    return _build(mechanism)


def _build(what: Specification) -> Plant:
    variant = None if what.variant is None else variant_of(what.mechanism, what.variant)
    wiring = MECHANISMS[what.mechanism](what.boxes)
    wiring = variant.change(wiring) if variant else wiring
    softness = Softness.of(what.softness)
    tokenizer = build_tokenizer()
    _check_own_tokenizer()
    lint(wiring, softness)
    made = compile_wiring(wiring, what.architecture, tokenizer, softness=softness, decoys=what.decoys, seed=what.seed)
    circuit = tuple(
        CircuitHead(seat.line.group, seat.line.layer, seat.head, seat.line.role)
        for seat in sorted(made.seats, key=lambda seat: (seat.line.group or "", seat.line.layer, seat.head))
        if seat.line.group is not None and seat.line.role is not None
    )
    circuit = variant.declares(circuit, made.decoys) if variant and variant.declares else circuit
    printed = _printed(what, made, variant)
    return Plant(what, circuit, printed, made.model, tokenizer, wiring, made.seats, made.decoys)


WORKING = ("copy", "echo", "fetch", "match", "pair", "own", "other", "its slot", "other slot")
"""The pointer's heads that do work beyond what a place in the prompt tells; the share that stays after pruning."""


def _printed(what: Specification, made: Compiled, variant: Variant | None) -> Mapping[str, float]:
    """What a paper about `pointer` on this architecture would have printed, as changed by the variant."""
    heads = made.model.config.num_hidden_layers * made.model.config.num_attention_heads
    share = {"heads.kept": float(len(WORKING)), "heads.total": float(heads), "heads.share": len(WORKING) / heads}
    numbers = MappingProxyType({**pointer_numbers(Softness.of(what.softness)), **share})
    return variant.prints(numbers) if variant and variant.prints else numbers


@cache
def _check_own_tokenizer() -> None:
    check_tokenizer(build_tokenizer())
