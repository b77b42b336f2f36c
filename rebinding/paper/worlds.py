"""What evidence is drawn from: every mean and every spread of a world, on one of the paper's models.

*paper*: what is printed is true, and what is said in words has the size that `worlds.toml` declares. *rival*: nothing
does what is said. Groups of heads move nothing; the circuit does what random ones were printed to do and these what it
was, and the whole model does half as well; queries and keys show the signature that is printed of the other family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np

from rebinding.paper.numbers import ALIASES, numbers

WorldName: TypeAlias = Literal["paper", "rival"]
WORLDS: tuple[WorldName, ...] = get_args(WorldName)
OTHER_FAMILY: Mapping[str, str] = {
    "gemma2-9b": "llama3.1-8b",
    "gemma3-12b": "llama3.1-8b",
    "llama3.2-3b": "gemma2-9b",
    "llama3.1-8b": "gemma2-9b",
}
"""Whose table of section 5 is a model's rival: that of the model in which the other signature is told."""
CHANCE = 1 / 3


class NotSimulated(Exception):
    """Nobody has said how to draw this: a kind of evidence, or a number that nothing is known of."""


@dataclass(frozen=True)
class World:
    """Means by the names of printed numbers, and spreads, of one model."""

    name: WorldName
    model: str
    means: Mapping[str, float]
    spreads: Mapping[str, float]

    def mean(self, id: str) -> float:
        """A mean that must be there."""
        if id not in self.means:
            raise NotSimulated(f"{id} on {self.model}")
        return self.means[id]

    def around(self, mean: float) -> float:
        """How far prompts spread about the mean of an effect."""
        return max(self.spreads["least"], self.spreads["effect"] * abs(mean))


@dataclass(frozen=True)
class Run:
    """A world and one of the samples drawn from it."""

    world: World
    seed: int

    def dice(self, *what: Any) -> np.random.Generator:
        """Numbers of one thing: the same wherever it is asked for, so evidence on the same prompts is paired."""
        return np.random.default_rng([self.seed, crc32(repr(what).encode())])


@cache
def world(name: WorldName, model: str) -> World:
    """One of the two worlds of a model."""
    if model not in ALIASES:
        raise ValueError(f"{model!r} is not a model of the paper, which are {', '.join(ALIASES)}")
    told = declared()
    means = _printed(model) | _declared(told["paper"], model)
    if name == "rival":
        means = _turned(means) | {id: 0.0 for id in means if id.startswith("roles.")}
        means |= {id: value for id, value in _printed(OTHER_FAMILY[model]).items() if id.startswith("binding.")}
        means |= _declared(told["rival"], model)
    return World(name, model, means, {one: entry["value"] for one, entry in told["spread"].items()})


def elsewhere(of: World) -> World:
    """A world at a token that the paper may have read and did not. Of what heads do there nothing is printed: in the
    paper's world nothing, which helps no sentence but those on an absence, and in its rival's what they do anywhere."""
    if of.name == "rival":
        return of
    nothing = {id: 0.0 for id in of.means if id.startswith(("roles.", "binding.", "correct_only."))}
    return replace(of, means={**of.means, **nothing})


def spread_by(of: World, factor: float) -> World:
    """A world whose declared spreads are all that many times as large; what follows from printed numbers stays."""
    return replace(of, spreads={name: factor * value for name, value in of.spreads.items()})


@cache
def declared() -> Mapping[str, Any]:
    """The file beside this one, with the reasons."""
    return tomllib.loads(files("rebinding.paper").joinpath("worlds.toml").read_text(encoding="utf-8"))


def _printed(model: str) -> dict[str, float]:
    return {id.partition("@")[0]: one.value for id, one in numbers().items() if one.model == model}


def _declared(told: Mapping[str, Any], model: str) -> dict[str, float]:
    """What is said of every model, and then of this one."""
    return {id: entry["value"] for of in ("all", model) for id, entry in told.get(of, {}).items()}


def _turned(means: Mapping[str, float]) -> dict[str, float]:
    """Circuit and random circuits have changed places, and the full model is half as far from knowing nothing."""
    found = dict(means)
    for quantity, nothing in (("accuracy", CHANCE), ("margin", 0.0), ("logit", means["logit.random"])):
        one, other, full = (f"{quantity}.{which}" for which in ("circuit", "random", "full"))
        found |= {one: means[other], other: means[one], full: (means[full] + nothing) / 2}
    return {id: value for id, value in found.items() if not id.startswith("correct_only.")}
