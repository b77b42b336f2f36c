"""Adapters on disk, in the format of the library peft: two files, which peft and what builds on it can open too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rebinding.learned.lora import PROJECTIONS, Adapter, Pair, layer_of

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
STORED = torch.bfloat16
"""What the thin matrices are rounded to, for half the bytes; whatever is said of an adapter is said of it rounded."""


class AdapterError(ValueError):
    """An adapter that cannot be read, or is for another model."""


def write(folder: Path, adapter: Adapter) -> None:
    """Write an adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in adapter.pairs}, key=PROJECTIONS.index),
        "layers_to_transform": sorted({layer_of(name) for name in adapter.pairs}),
        "layers_pattern": "layers",
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {}
    for name, pair in adapter.pairs.items():
        tensors[f"{PREFIX}{name}{DOWN}"] = pair.down.detach().to(STORED).contiguous()
        tensors[f"{PREFIX}{name}{UP}"] = pair.up.detach().to(STORED).contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read(folder: Path) -> Adapter:
    """Read an adapter; anything in its description that we would not compute is refused."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise AdapterError(f"{folder} has no {name}: give the folder that `python -m rebinding train` wrote")
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    _check_config(folder, config)
    tensors = load_file(folder / WEIGHTS)
    names = sorted(key.removeprefix(PREFIX).removesuffix(DOWN) for key in tensors if key.endswith(DOWN))
    known = {f"{PREFIX}{name}{end}" for name in names for end in (DOWN, UP)}
    if not names or known != set(tensors):
        odd = sorted(known ^ set(tensors))[:3]
        raise AdapterError(
            f"{folder / WEIGHTS} is not made of pairs of lora_A and lora_B: {', '.join(odd) or 'it is empty'}"
        )
    pairs = {name: Pair(tensors[f"{PREFIX}{name}{DOWN}"], tensors[f"{PREFIX}{name}{UP}"]) for name in names}
    return Adapter(pairs, config["r"], config["lora_alpha"], config["base_model_name_or_path"])


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder} holds a {config.get('peft_type')} adapter; only LORA is read here")
    changes = ("use_dora", "use_rslora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern")
    asked = [name for name in changes if config.get(name)] + (["bias"] if config.get("bias", "none") != "none" else [])
    if asked:
        raise AdapterError(
            f"{folder / CONFIG} asks for {', '.join(asked)}, which is not read here: merge it with peft"
            " (merge_and_unload), save the model, and give that folder"
        )


def check_fits(model: nn.Module, adapter: Adapter) -> None:
    """Refuse an adapter whose modules the model lacks or has in another shape."""
    modules = dict(model.named_modules())
    for name, pair in adapter.pairs.items():
        module = modules.get(name)
        if not isinstance(module, nn.Linear):
            raise AdapterError(f"the adapter is for {adapter.base} and changes {name}, which this model has not")
        shape = (pair.up.shape[0], pair.down.shape[1])
        if tuple(module.weight.shape) != shape:
            raise AdapterError(
                f"the adapter is for {adapter.base}: its {name} is {shape}, the model's {tuple(module.weight.shape)}"
            )
