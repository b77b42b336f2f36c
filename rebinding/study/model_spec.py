"""Specifications of the models that are judged, from their names alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rebinding.models import ALIASES, Origin, origin
from rebinding.models.devices import Dtype
from rebinding.models.dtypes import default_dtype, fits_the_paper
from rebinding.models.names import family_of
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS, Specification, parse
from rebinding.planted.truth import truth_of


@dataclass(frozen=True)
class ModelSpec:
    """A model by name. `by_default` marks the paper's four, which are judged if no model is named and need a GPU."""

    name: str
    origin: Origin
    by_default: bool = False

    @property
    def alias(self) -> str | None:
        """The model of the paper as which this one is judged."""
        return self.origin.alias.name if self.origin.alias and self.origin.kind != "shape" else None

    @cached_property
    def plant(self) -> Specification | None:
        """The specification of a planted model; None for any other."""
        return parse(self.origin.target) if self.origin.kind == "planted" else None

    @property
    def family(self) -> str | None:
        """The family of a plant, of a learned model's base, or of a model of the paper."""
        if self.origin.kind == "learned":
            return family_of(self.origin)
        name = self.plant.architecture if self.plant is not None else self.alias or ""
        return next((family for family in ("gemma", "llama") if name.startswith(family)), None)

    @property
    def shape_fits(self) -> bool:
        """Whether the model has the layers and heads of the paper's model (taken as true of models on the Hub)."""
        return fits_the_paper(self.origin)

    @property
    def dtype(self) -> Dtype:
        """The dtype in which it is judged where none is given."""
        return default_dtype(self.origin)

    @property
    def fixed_dtype(self) -> bool:
        """Whether another dtype makes it another model: a plant's truth and the paper's numbers hold for one dtype."""
        return self.plant is not None or (self.alias is not None and self.shape_fits)

    def judged_on(self, claim: str) -> bool:
        """Whether a claim is judged on this model; a plant's variant is judged on the claims it is made for."""
        plant = self.plant
        return plant is None or plant.variant is None or claim in truth_of(plant.mechanism, plant.variant)

    @staticmethod
    def of_the_paper() -> Iterator[ModelSpec]:
        """The paper's four models, from the Hub."""
        for name in ALIASES:
            yield ModelSpec(name, origin(name), by_default=True)


def parse_model(name: str) -> ModelSpec:
    """The specification of a model name; a ValueError says what is wrong with the name."""
    model_origin = origin(name)
    if model_origin.kind != "planted":
        return ModelSpec(name, model_origin)
    plant = parse(model_origin.target)
    fitting = [variant for variant, facts in VARIANTS.items() if plant.mechanism in facts.mechanisms]
    if plant.variant is not None and plant.variant not in fitting:
        raise ValueError(
            f"{name}: {plant.mechanism} has no variant {plant.variant!r}; it has {', '.join(fitting) or 'none'}"
        )
    return ModelSpec(plant.name, origin(plant.name))


def planted_models() -> list[str]:
    """The names of all planted models: every mechanism on every architecture, and every variant with a truth table."""
    plain = [Specification(mechanism, architecture) for mechanism in MECHANISMS for architecture in ARCHITECTURES]
    varied = [
        Specification(mechanism, architecture, name)
        for name, variant in VARIANTS.items()
        for mechanism in variant.mechanisms
        for architecture in ARCHITECTURES
        if truth_of(mechanism, name)
    ]
    return [plant.name for plant in (*plain, *varied)]
