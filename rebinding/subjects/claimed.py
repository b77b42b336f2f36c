"""What a model's folder says of its weights, held against their headers, before anything of that size is made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rebinding.subjects.errors import DamagedWeights

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configurations call the number of layers."""
TOWERS = ("text_config", "llm_config", "language_config")
"""Where a model of text and something else says it of its text."""


def files_of_index(path: Path, index: Mapping[str, Any]) -> list[str]:
    """The files that an index names: plain names, in the folder that the index is in."""
    told = index.get("weight_map")
    names = set(told.values()) if isinstance(told, dict) and all(map(_is_name, told.values())) else set()
    if not names:
        raise DamagedWeights(
            f"{path} names no weights, or files that are no .safetensors beside it: fetch the model again, completely"
        )
    return sorted(names)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value and value.endswith(".safetensors")


def check_layers(folder: Path, config: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a configuration with other layers than the weights have.

    With fewer, transformers would drop the rest without a word; with a billion, it would begin to build them.
    """
    claims = {name: value for name, value in _claims(config) if value is not None}
    held = {prefix: len(numbers) for prefix, numbers in _stacks(tensors).items()}
    wrong = {name: value for name, value in claims.items() if value not in held.values() or isinstance(value, bool)}
    if held and wrong:
        name, value = next(iter(wrong.items()))
        has = ", ".join(f"{count} of {prefix}" for prefix, count in sorted(held.items()))
        raise DamagedWeights(
            f"{folder / 'config.json'} says {name} = {str(value)[:40]}, its weights have {has}: they do not belong "
            "together. Fetch both again."
        )


def _claims(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    texts = [config[name] for name in TOWERS if isinstance(config.get(name), dict)]
    for part in texts or [config]:
        yield from ((name, part[name]) for name in LAYERS if name in part)


def _stacks(tensors: Iterable[str]) -> Mapping[str, set[int]]:
    """The numbered parts of a model, by what they are called: `model.layers` has 0, 1, 2 and so on."""
    found: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        parts = name.split(".")
        first = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        if first is not None:
            found[".".join(parts[:first])].add(int(parts[first]))
    return found
