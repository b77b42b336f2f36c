"""The worlds that simulated evidence is drawn from: every mean and spread on one of the paper's models.

*paper*: the printed numbers are true, and effects that the paper states in words have the size that `worlds.toml`
declares. *rival*: group B carries the object and not its place, group A leaves a new object alone; the circuit and
random circuits exchange their printed numbers, and the full model does half as well; queries and keys have the
signature printed for the other family; no other stated effect exists.

**A world of one's own**, from a TOML file: the paper's world with other means and spreads.

    name = "reversed"

    [means]
    "binding.qk.dR" = -2.5

    [means."gemma2-9b"]
    "binding.q.dR" = 2.66

    [candidates."two tokens before ':'"]
    "binding.qk.dR" = 2.0

    [spreads]
    set = 0.05

`[means]` is for every model, `[means."MODEL"]` for one. `[candidates."NAME"]` has means under one convention alone, as
reasons of verdicts name it. Names of means are those of `rebinding/paper/published.toml` and `worlds.toml`, names of
spreads those of `[spread.*]` in the latter. What is not named is the paper's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rebinding.experiments.binding.conditions import CHOICES
from rebinding.paper.numbers import ALIASES, GROUPS, numbers
from rebinding.paper.procedure import EITHER

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
    return tomllib.loads(files("rebinding.simulate").joinpath("worlds.toml").read_text(encoding="utf-8"))


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


TABLES = ("name", "means", "candidates", "spreads")
ROLES = {f"{places} places, {direction} direction" for places, direction in (("published", "code"), ("paper", "text"))}
CONVENTIONS: frozenset[str] = frozenset({*EITHER, *ROLES, *(name for name, _ in CHOICES.values())})
"""Every convention that has means of its own: a token that may have been read, the text's procedure of section 4.2, and
the text's key directions of section 5."""
ByModel: TypeAlias = Mapping[str, Mapping[str, float]]
"""Means by model; those of every model under the empty name."""


class WorldFileError(ValueError):
    """A file of means that says what no world has."""


@dataclass(frozen=True)
class OwnWorld:
    """A file of means and spreads."""

    name: str
    means: ByModel
    candidates: Mapping[str, ByModel]
    spreads: Mapping[str, float]

    def world(self, model: str) -> World:
        """The world of a model: the paper's, with these means and spreads instead."""
        paper = world("paper", model)
        candidates = {name: of_model(means, model) for name, means in self.candidates.items()}
        return replace(
            paper,
            name=self.name,
            means={**paper.means, **of_model(self.means, model)},
            spreads={**paper.spreads, **self.spreads},
            candidates=candidates,
        )


def of_model(means: ByModel, model: str) -> Mapping[str, float]:
    """The means of a model: those of every model, replaced by its own."""
    return {**means[""], **means.get(model, {})}


@cache
def read_world(path: Path) -> OwnWorld:
    """Read a file; raises WorldFileError for names that no world has, with the nearest ones."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorldFileError(f"{path} cannot be read: {error.strerror}; give a TOML file of means") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorldFileError(f"{path} is no TOML file: {error}") from None
    check_names(path, "table", content, TABLES)
    name = content.get("name", path.stem)
    if not isinstance(name, str) or not name or name in WORLDS:
        raise WorldFileError(f"{path}: name = {name!r}; give a text that is neither {' nor '.join(WORLDS)}")
    candidates = _table(path, "candidates", content)
    check_names(path, "convention", candidates, CONVENTIONS)
    means = _by_model(path, "means", _table(path, "means", content))
    by_convention = {key: _by_model(path, f'candidates."{key}"', _table(path, key, candidates)) for key in candidates}
    spreads = _table(path, "spreads", content)
    check_names(path, "spread", spreads, declared()["spread"])
    numbers = {key: _number(path, key, spreads[key], **spread_limits(key)) for key in spreads}
    own = OwnWorld(name, means, by_convention, numbers)
    for model in ALIASES:
        of = own.world(model)
        check_margins(path, of, (name for table in (means, *by_convention.values()) for name in of_model(table, model)))
        for convention in candidates:
            check_margins(path, of.under(convention), of_model(by_convention[convention], model))
    return own


def check_margins(path: Path, of: World, named: Iterable[str]) -> None:
    """A margin spreads about its mean like a normal, and is above 0 where the answer is right: so a mean above 0 needs
    more than half of the answers right, and a mean below 0 less."""
    changed = {name.partition(".")[2] for name in named if name.startswith(("accuracy.", "margin."))}
    for which in sorted(changed & {"full", "circuit", "random"}):
        share, margin = of.mean(f"accuracy.{which}"), of.mean(f"margin.{which}")
        if (share - 0.5) * margin <= 0:
            raise WorldFileError(
                f"{path}: accuracy.{which} = {share:g} and margin.{which} = {margin:g} on {of.model}: a margin above 0"
                " needs more than half of the answers right, and one below 0 less; give both"
            )


def check_names(path: Path, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that is not known."""
    known_names = sorted(known)
    for name in names:
        if name not in known_names:
            near = get_close_matches(name, known_names, n=3, cutoff=0.5) or known_names
            raise WorldFileError(f"{path}: there is no {kind} {name!r}; the nearest are {', '.join(map(repr, near))}")


def _table(path: Path, key: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise WorldFileError(f"{path}: {key} = {table!r}; give a table, [{key}]")
    return table


def _by_model(path: Path, where: str, table: Mapping[str, Any]) -> ByModel:
    """Split a table into the means of every model and those of each."""
    models = {key: value for key, value in table.items() if isinstance(value, dict)}
    check_names(path, f"model in [{where}]", models, ALIASES)
    result: dict[str, Mapping[str, float]] = {}
    for model, means in ({"": {k: v for k, v in table.items() if k not in models}} | models).items():
        check_names(path, f"mean in [{where}]", means, known_means(model))
        result[model] = {id: _number(path, id, value, **limits(id)) for id, value in means.items()}
    return result


@cache
def known_means(model: str) -> frozenset[str]:
    """The names of a model's means; of every model's for the empty name."""
    roles = {f"roles.{group}.{target}" for group in GROUPS for target in ("pointer", "content")}
    worlds = (world(name, alias) for alias in ALIASES if model in ("", alias) for name in WORLDS)
    return frozenset(roles.union(*(of.means for of in worlds)))


def limits(id: str) -> Mapping[str, float]:
    """The range of a mean: shares lie between 0 and 1."""
    return {"low": 0.0, "high": 1.0} if id.startswith("accuracy.") or id.endswith(".switch") else {}


def spread_limits(id: str) -> Mapping[str, float]:
    """The range of a spread: a correlation lies between -1 and 1."""
    return {"low": -1.0, "high": 1.0} if id == "correlation" else {"low": 0.0}


def _number(path: Path, name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        bounds = f" from {low:g} to {high:g}" if high < math.inf else f" of {low:g} or more" if low > -math.inf else ""
        raise WorldFileError(f"{path}: {name} = {value!r}; give a finite number{bounds}")
    return float(value)
