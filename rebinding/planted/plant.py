"""Plants: models with a known mechanism, its circuit and its truth table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

from rebinding.paper.circuit import CircuitHead
from rebinding.planted.changes import PlantVariant
from rebinding.planted.compiler import ARCHITECTURES, CompiledModel, compile_wiring
from rebinding.planted.language import Softness, Wiring, WiringError, check_prompt, check_tokenizer
from rebinding.planted.linter import lint
from rebinding.planted.mechanisms import MECHANISMS
from rebinding.planted.printed import pointer_numbers
from rebinding.planted.projections import Seat
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.planted.truth import Truth, truth_of
from rebinding.planted.variants import variant_of
from rebinding.task.designs import DesignName
from rebinding.task.prompts import Encoded

MIN_BOXES, MAX_BOXES = 3, 7
GRADED = 0.75
"""The default softness: attention is graded, as in real models, and every answer is right by a clear margin."""


@dataclass(frozen=True)
class Specification:
    """What to build. `boxes` is the largest number of boxes in a prompt, `softness` runs from 0 (hard) to 1, `decoys`
    bounds the number of heads with random weights (None: every head without a line)."""

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
        Softness.of(self.softness)  # raises if out of range

    @property
    def name(self) -> str:
        """The name from which `parse` makes this specification."""
        variant = f"+{self.variant}" if self.variant else ""
        options = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)[3:]
            if getattr(self, field.name) != field.default
        ]
        return f"planted:{self.mechanism}{variant}@{self.architecture}" + ("?" + "&".join(options) if options else "")


@dataclass(frozen=True, eq=False)
class Declared:
    """The declared circuit of a plant, and the numbers that a paper about it would have printed."""

    specification: Specification
    circuit: tuple[CircuitHead, ...]
    printed: Mapping[str, float]

    @property
    def mechanism(self) -> str:
        return self.specification.mechanism

    @property
    def means(self) -> DesignName:
        """The design whose means a paper about it would have used for ablated heads."""
        changed = self.specification.variant
        return variant_of(self.mechanism, changed).means if changed else "counterbalanced"

    @cached_property
    def truth(self) -> Mapping[str, Truth]:
        """The true verdict of every row."""
        return truth_of(self.specification.mechanism, self.specification.variant)


@dataclass(frozen=True, eq=False)
class Plant(Declared):
    """A planted model with its wiring, seats and decoys."""

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
    match = re.fullmatch(r"(?:planted:)?([a-z]+)(?:\+([a-z_]+))?(?:@([a-z0-9]+))?(?:\?(.*))?", text.strip())
    if match is None:
        raise WiringError(f"{text!r} is not of the form MECHANISM[+VARIANT][@ARCHITECTURE][?boxes=5&softness=0.5]")
    mechanism, variant, architecture, options = match.groups()
    specification = Specification(mechanism, architecture or "llama", variant)
    kinds: dict[str, Any] = {"boxes": int, "softness": float, "decoys": int, "seed": int}
    forms = {int: r"[0-9]{1,9}", float: r"[0-9]{1,9}(\.[0-9]{1,9})?"}
    for option in (options or "").split("&") if options else ():
        name, _, value = option.partition("=")
        if name not in kinds or not re.fullmatch(forms[kinds[name]], value):
            raise WiringError(
                f"{option!r} in {text!r} is no option; write {', '.join(f'{kind}=NUMBER' for kind in kinds)};"
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


def _build(specification: Specification) -> Plant:
    variant = None if specification.variant is None else variant_of(specification.mechanism, specification.variant)
    wiring = MECHANISMS[specification.mechanism](specification.boxes)
    wiring = variant.change(wiring) if variant else wiring
    softness = Softness.of(specification.softness)
    tokenizer = build_tokenizer()
    _check_own_tokenizer()
    lint(wiring, softness)
    compiled = compile_wiring(
        wiring,
        specification.architecture,
        tokenizer,
        softness=softness,
        decoys=specification.decoys,
        seed=specification.seed,
    )
    circuit = tuple(
        CircuitHead(seat.line.group, seat.line.layer, seat.head, seat.line.role)
        for seat in sorted(compiled.seats, key=lambda seat: (seat.line.group or "", seat.line.layer, seat.head))
        if seat.line.group is not None and seat.line.role is not None
    )
    circuit = variant.declares(circuit, compiled.decoys) if variant and variant.declares else circuit
    printed = _printed(specification, compiled, variant)
    return Plant(specification, circuit, printed, compiled.model, tokenizer, wiring, compiled.seats, compiled.decoys)


WORKING = ("copy", "echo", "fetch", "match", "pair", "own", "other", "its slot", "other slot")
"""The pointer's heads that do more than encode a place in the prompt; they stay after pruning."""


def _printed(
    specification: Specification, compiled: CompiledModel, variant: PlantVariant | None
) -> Mapping[str, float]:
    """The numbers that a paper about `pointer` on this architecture would have printed, changed by the variant."""
    heads = compiled.model.config.num_hidden_layers * compiled.model.config.num_attention_heads
    share = {"heads.kept": float(len(WORKING)), "heads.total": float(heads), "heads.share": len(WORKING) / heads}
    numbers = MappingProxyType({**pointer_numbers(Softness.of(specification.softness)), **share})
    return variant.prints(numbers) if variant and variant.prints else numbers


@cache
def _check_own_tokenizer() -> None:
    check_tokenizer(build_tokenizer())
