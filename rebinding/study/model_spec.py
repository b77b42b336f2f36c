"""The models that are judged, and what is known of them before they are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rebinding.models import ALIASES, ModelError, Origin, origin
from rebinding.models.adapted import of_base
from rebinding.models.devices import DTYPES, Dtype
from rebinding.paper.numbers import checkpoint
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS, Specification, parse
from rebinding.planted.truth import truth_of


@dataclass(frozen=True)
class ModelSpec:
    """A model by name. `by_default` ones were not asked for: the paper's four, which need a GPU."""

    name: str
    origin: Origin
    by_default: bool = False

    @property
    def alias(self) -> str | None:
        """The model of the paper as which this one is judged."""
        return self.origin.alias.name if self.origin.alias and self.origin.kind != "shape" else None

    @cached_property
    def plant(self) -> Specification | None:
        """What is planted, where something is."""
        return parse(self.origin.target) if self.origin.kind == "planted" else None

    @property
    def family(self) -> str | None:
        """The family of a plant or of a model of the paper."""
        told = self.plant.architecture if self.plant is not None else self.alias or ""
        return next((family for family in ("gemma", "llama") if told.startswith(family)), None)

    @property
    def shape_fits(self) -> bool:
        """Whether the model has the layers and heads of the paper's model (taken as true of models on the Hub)."""
        if self.alias is None or self.origin.kind != "folder":
            return self.alias is not None
        paper = checkpoint(self.alias)
        config = self._config()
        text = config.get("text_config", config)
        return isinstance(text, dict) and (text.get("num_hidden_layers"), text.get("num_attention_heads")) == (
            paper.layers,
            paper.heads,
        )

    @property
    def dtype(self) -> Dtype:
        """What it is computed in: plants in float32, the paper's models as on record, a folder as it was saved."""
        if self.plant is not None:
            return "float32"
        if self.origin.kind in ("gguf", "learned"):
            return "float32"  # as they come out of their quantisation, or were trained
        if self.origin.kind == "adapter":
            return self._base_dtype()
        if self.origin.kind != "folder" or self.shape_fits:
            return self.origin.alias.dtype if self.origin.alias else "bfloat16"
        config = self._config()
        saved = config.get("dtype") or config.get("torch_dtype")
        return saved if saved in DTYPES else "float32"

    @property
    def fixed_dtype(self) -> bool:
        """Whether another dtype would make it another model: a plant's truth, or the paper's numbers, are for this."""
        return self.plant is not None or (self.alias is not None and self.shape_fits)

    def _base_dtype(self) -> Dtype:
        try:
            return ModelSpec(self.name, of_base(self.origin)).dtype
        except ModelError:
            return "float32"  # loading it says why

    def _config(self) -> dict[str, Any]:
        """What the folder says of the model; nothing, where it says nothing that can be read. Loading it says why."""
        try:
            found = json.loads((Path(self.origin.target) / "config.json").read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def judged_on(self, claim: str) -> bool:
        """Whether a claim is judged on this model: a plant's variant is made for some claims, and judged on those."""
        what = self.plant
        return what is None or what.variant is None or claim in truth_of(what.mechanism, what.variant)

    @staticmethod
    def of_the_paper() -> Iterator[ModelSpec]:
        """The four models, to be had from the Hub."""
        for name in ALIASES:
            yield ModelSpec(name, origin(name), by_default=True)


def parse_model(name: str) -> ModelSpec:
    """A model that was asked for by name; a ValueError says what is wrong with the name."""
    found = origin(name)
    if found.kind != "planted":
        return ModelSpec(name, found)
    what = parse(found.target)
    fitting = [known for known, variant in VARIANTS.items() if what.mechanism in variant.mechanisms]
    if what.variant is not None and what.variant not in fitting:
        raise ValueError(
            f"{name}: {what.mechanism} has no variant {what.variant!r}; it has {', '.join(fitting) or 'none'}"
        )
    return ModelSpec(what.name, origin(what.name))


def planted_models() -> list[str]:
    """Every mechanism on every architecture, and with every variant whose truth is written down."""
    plain = [Specification(mechanism, architecture) for mechanism in MECHANISMS for architecture in ARCHITECTURES]
    varied = [
        Specification(mechanism, architecture, name)
        for name, variant in VARIANTS.items()
        for mechanism in variant.mechanisms
        for architecture in ARCHITECTURES
        if truth_of(mechanism, name)
    ]
    return [one.name for one in (*plain, *varied)]
