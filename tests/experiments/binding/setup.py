"""Models, prompts and heads for the tests of sections 4.2 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import Condition, every_pair
from rebinding.experiments.binding.directions import Directions, measure_directions
from rebinding.experiments.binding.measure import run_binding
from rebinding.paper.circuit import Head
from rebinding.planted import build
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Surgeon, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.designs import DesignName, design
from rebinding.task.prompts import Encoded, Encoder
from tests.families.models import Family, tiny

SLOTS = 3
BLOCK = 36
"""Ids over which the counterbalanced design with three boxes is balanced."""


@dataclass(frozen=True)
class Bench:
    """A surgeon on a model, its tokenizer, and the heads under test."""

    surgeon: Surgeon
    tokenizer: Any
    heads: tuple[Head, ...]
    groups: Any = None

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer)

    def prompts(self, name: DesignName, n: int) -> list[Encoded]:
        stories = design(name, split="evaluation") if name == "counterbalanced" else design(name)
        return self.encoder.encode(stories.prompt(number) for number in range(n))

    def directions(self, name: DesignName, n: int) -> Directions:
        stories = design(name, split="directions") if name == "counterbalanced" else design(name)
        prompts = {
            slot: self.encoder.encode(stories.direction(10_000 + number, slot) for number in range(n))
            for slot in range(SLOTS)
        }
        return measure_directions(self.surgeon, prompts, self.heads)

    def binding(
        self,
        name: DesignName,
        conditions: Sequence[Condition],
        *,
        n: int = 8,
        learned: int | None = None,
        **options: Any,
    ) -> Evidence:
        """Published or partner_second: from slot 1 to slot 0; counterbalanced: all ordered pairs.

        `learned` is the number of prompts per slot that directions are measured on.
        """
        pairs = every_pair(SLOTS) if name == "counterbalanced" else ((1, 0),)
        settings: dict[str, Any] = {"ids": range(n), "token": self.encoder.answer_token}
        settings |= {"pairs": pairs, "conditions": conditions} | options
        directions = settings.pop("directions", None) or self.directions(name, learned or n)
        return run_binding(self.surgeon, self.prompts(name, n), directions, self.heads, **settings)


@cache
def planted(mechanism: str, architecture: str, variant: str | None = None) -> Bench:
    """A planted model, with the heads that it calls group B."""
    plant = build(mechanism, architecture, variant=variant)
    groups: dict[str, list[Head]] = {}
    for head in plant.circuit:
        groups.setdefault(head.group, []).append((head.layer, head.head))
    surgeon = TorchSurgeon(plant.model, derive(plant.model))
    return Bench(surgeon, plant.tokenizer, tuple(groups["B"]) if "B" in groups else (), groups)


def shape(tokenizer: Any, family: Family) -> dict[str, int]:
    """Options of a random model that differ from those of other tiny models."""
    windows = {} if family == "llama" else {"sliding_window": 60}
    return {"vocab_size": len(tokenizer), "max_position_embeddings": 256, **windows}


@cache
def random_model(family: Family, *, oracle: bool = False) -> Bench:
    """A random model over the planted models' words, with windows that reach back to the context; the same every time.

    Two of the heads share a KV head, and they stand in two layers. `oracle` puts it under the nnsight surgeon.
    """
    tokenizer = build_tokenizer()
    model = tiny(family, **shape(tokenizer, family))
    surgeon: Surgeon = (NNsightSurgeon if oracle else TorchSurgeon)(model, derive(model))
    return Bench(surgeon, tokenizer, ((1, 0), (1, 2), (2, 4)))
