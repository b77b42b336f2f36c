"""The worlds that simulated evidence is drawn from: every mean and spread on one of the paper's models.

*paper*: the printed numbers are true, and effects that the paper states in words have the size that `worlds.toml`
declares. *rival*: group B carries the object and not its place, group A leaves a new object alone; the circuit and
random circuits exchange their printed numbers, and the full model does half as well; queries and keys have the
signature printed for the other family; no other stated effect exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rebinding.paper.numbers import ALIASES, numbers

WorldName: TypeAlias = Literal["paper", "rival"]
WORLDS: tuple[WorldName, ...] = get_args(WorldName)
OTHER_FAMILY: Mapping[str, str] = {
    "gemma2-9b": "llama3.1-8b",
    "gemma3-12b": "llama3.1-8b",
    "llama3.2-3b": "gemma2-9b",
    "llama3.1-8b": "gemma2-9b",
}
"""The model whose table of section 5 is a model's rival: one with the other signature."""
CHANCE = 1 / 3
UNSCALED = ("correlation", "floor")
"""Declared beside the spreads, and no spread of prompts: a factor of all spreads leaves these alone."""


class NotSimulated(Exception):
    """A kind of evidence without a simulator, or a number without a declared mean."""


@dataclass(frozen=True)
class World:
    """Means by the names of printed numbers, and spreads, of one model. `candidates` has the means that differ under a
    convention, by its name."""

    name: str
    model: str
    means: Mapping[str, float]
    spreads: Mapping[str, float]
    candidates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def mean(self, id: str) -> float:
        """A mean; raises NotSimulated if the world has none."""
        if id not in self.means:
            raise NotSimulated(f"{id} on {self.model}")
        return self.means[id]

    def under(self, convention: str) -> World:
        """The world under a convention."""
        own = self.candidates.get(convention)
        return replace(self, means={**self.means, **own}) if own else self

    def around(self, mean: float) -> float:
        """The spread of prompts about the mean of an effect."""
        return max(self.spreads["least"], self.spreads["effect"] * abs(mean))


@dataclass(frozen=True)
class Run:
    """A world and one of the samples drawn from it."""

    world: World
    seed: int

    def dice(self, *key: Any) -> np.random.Generator:
        """A generator that depends only on the seed and the key, so evidence on the same prompts is paired."""
        return np.random.default_rng([self.seed, crc32(repr(key).encode())])

    def correlate(self, own: npt.ArrayLike, *key: Any, is_opposed: bool = False) -> npt.NDArray[np.float64]:
        """Standard normals of a condition, correlated with those of every other condition with this key.

        z = sqrt(1 - |c|) own + sqrt(|c|) common, where c is the world's correlation. If c is below 0, an opposed
        condition has -common: differences to it spread more, and sums less.
        """
        share = self.world.spreads["correlation"]
        common = self.dice("common", *key).standard_normal(np.shape(own))
        sign = -1.0 if is_opposed and share < 0 else 1.0
        result: npt.NDArray[np.float64] = (
            np.sqrt(1 - abs(share)) * np.asarray(own) + sign * np.sqrt(abs(share)) * common
        )
        return result

    def rounding(self, *key: Any) -> float:
        """How much rounding moves all logits of a condition: up to the world's noise floor, up or down."""
        return float(self.world.spreads["floor"] * self.dice("rounding", *key).uniform(-1, 1))


@cache
def world(name: WorldName, model: str) -> World:
    """One of the two worlds of a model."""
    if model not in ALIASES:
        raise ValueError(f"{model!r} is not a model of the paper, which are {', '.join(ALIASES)}")
    declarations = declared()
    means = _printed(model) | _declared(declarations["paper"], model)
    if name == "rival":
        means = _exchange_roles(_exchange_circuits(means))
        means |= {id: value for id, value in _printed(OTHER_FAMILY[model]).items() if id.startswith("binding.")}
        means |= _declared(declarations["rival"], model)
    return World(name, model, means, {id: entry["value"] for id, entry in declarations["spread"].items()})


def at_unmeasured_token(of: World) -> World:
    """A world at a token that the paper may have read and did not. The paper prints nothing about heads there: in the
    paper's world they have no effect, which helps only sentences about an absence, and in the rival's the usual one."""
    if of.name == "rival":
        return of
    nothing = {id: 0.0 for id in of.means if id.startswith(("roles.", "binding.", "correct_only."))}
    return replace(of, means={**of.means, **nothing})


def scale_spreads(of: World, factor: float) -> World:
    """A world with all declared spreads multiplied by `factor`; spreads from printed numbers stay."""
    scaled = {name: factor * value for name, value in of.spreads.items() if name not in UNSCALED}
    return replace(of, spreads={**of.spreads, **scaled})


@cache
def declared() -> Mapping[str, Any]:
    """The content of `worlds.toml`, with the reasons."""
    return tomllib.loads(files("rebinding.paper").joinpath("worlds.toml").read_text(encoding="utf-8"))


def _printed(model: str) -> dict[str, float]:
    return {id.partition("@")[0]: number.value for id, number in numbers().items() if number.model == model}


def _declared(entries: Mapping[str, Any], model: str) -> dict[str, float]:
    """The declared means of all models, replaced by those of this one."""
    return {id: entry["value"] for group in ("all", model) for id, entry in entries.get(group, {}).items()}


def _exchange_roles(means: Mapping[str, float]) -> dict[str, float]:
    """Exchange what group B does to the pointer target and to a new object; group A does nothing to a new object."""
    pointer, content = (f"roles.B.{target}" for target in ("pointer", "content"))
    return {**means, pointer: means[content], content: means[pointer], "roles.A.content": 0.0}


def _exchange_circuits(means: Mapping[str, float]) -> dict[str, float]:
    """Exchange the circuit with random circuits, and halve the full model's distance from chance."""
    exchanged = dict(means)
    for quantity, baseline in (("accuracy", CHANCE), ("margin", 0.0), ("logit", means["logit.random"])):
        circuit, random, full = (f"{quantity}.{name}" for name in ("circuit", "random", "full"))
        exchanged |= {circuit: means[random], random: means[circuit], full: (means[full] + baseline) / 2}
    return {id: value for id, value in exchanged.items() if not id.startswith("correct_only.")}
