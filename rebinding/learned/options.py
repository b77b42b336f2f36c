"""Options of an adapter, in the words of the library peft: which we compute, which change nothing, and all others.

Those of a plain adapter are listed, not those to refuse: peft gets new options with every version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

COMPUTED = frozenset({"peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha"})
"""What `files` and `adapted` read and check themselves."""

WITHOUT_EFFECT = frozenset(
    {
        "task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "lora_dropout",
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",  # the tensors say it, by name
        "eva_config", "megatron_core", "qalora_group_size",  # unused unless another option is given
    }
)  # fmt: skip
"""Options that change nothing about weight + alpha / rank * up @ down, whatever their value."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
"""Values with which an option changes nothing. The other ways to begin change the base's weights, too."""

SWITCHED_OFF: tuple[Any, ...] = (None, False, [], {})
"""Values that say of any other option, known or not, that it is not used."""


def unsupported_options(config: Mapping[str, Any]) -> list[str]:
    """Names of the options with which peft computes something else, or may: we do not know them."""
    return [
        name
        for name, value in config.items()
        if name not in COMPUTED | WITHOUT_EFFECT and not _is_among(value, NEUTRAL.get(name, SWITCHED_OFF))
    ]


def is_finite_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; `True` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_among(value: object, values: tuple[Any, ...]) -> bool:
    """Whether a value is one of those; 0 is not `False`."""
    return any(type(value) is type(other) and value == other for other in values)
