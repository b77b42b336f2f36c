"""Every causal language model of the installed transformers, small and random."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.models.census_sizes import DEFAULT, OVERRIDES, SIZES
from tests.surgery.models import make_hostile

TYPES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LARGEST = 6_000_000
"""Parameters of a model that is still built."""
PROMPT = range(3, 19)
"""Tokens of a prompt that shows whether a model runs."""


class CannotBuild(Exception):
    """A type of which transformers makes no small model; the message holds the library's reason."""


def build(kind: str) -> PreTrainedModel:
    """A model of a type that answers a prompt, with hostile weights, on the library's eager attention."""
    try:
        model = _build(kind)
        make_hostile(model, seed=0)
        model(input_ids=torch.tensor([PROMPT]), use_cache=False)
    except CannotBuild:
        raise
    except Exception as error:  # configurations and models refuse sizes with errors of their own
        raise CannotBuild(f"{type(error).__name__}: {' '.join(str(error).split()):.200}") from error
    return model


def _build(kind: str) -> PreTrainedModel:
    config = small_config(kind)
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    count = sum(weight.numel() for weight in outline.parameters())
    if count > LARGEST:
        raise CannotBuild(f"it has {count:,} parameters at these sizes, more than {LARGEST:,}")
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model


def small_config(kind: str) -> PreTrainedConfig:
    """The configuration of a type with the sizes of the census, those of parts such as a text tower included."""
    sizes = _merge(_known_sizes(AutoConfig.for_model(kind)), OVERRIDES.get(kind, {}))
    config: PreTrainedConfig = AutoConfig.for_model(kind, **sizes)
    return config


def _known_sizes(config: PreTrainedConfig) -> dict[str, Any]:
    """The shared sizes that a configuration has, by name; one dictionary for each configuration inside it."""
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if name in vars(config)}
    for name in type(config).sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            sizes[name] = {"model_type": part.model_type, **_known_sizes(part)}
    return sizes


def _merge(sizes: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The sizes with the changes, those of parts too; `DEFAULT` removes a size."""
    merged = dict(sizes)
    for name, value in changes.items():
        merged[name] = _merge(merged.get(name, {}), value) if isinstance(value, dict) else value
    return {name: value for name, value in merged.items() if value is not DEFAULT}
