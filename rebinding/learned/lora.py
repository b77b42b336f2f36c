"""Low-rank adapters: `scale * up @ down` is added to some of a model's matrices.

In training the addition is computed by a hook (`attached`), so that gradients reach two thin matrices and not the wide
one. For a study it is added into the weights once (`merge`): the result is a model like any other, without hooks that a
surgeon could miss. On disk an adapter has the format of the library peft: two files, which peft and libraries based on
it can open.

The library itself is not used. From the same first matrices it trains the same adapter, bit for bit. But its own first
matrices are others, its sums are not rounded once from float64, and its files state more with every version: digests
of adapters and fingerprints of models would change, and whoever loads an adapter would need it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers.pytorch_utils import Conv1D

PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn"),
    *("o_proj", "out_proj", "dense", "c_proj"),
)
"""Names of the projections of an attention module, in any family."""
ATTENTION = ("self_attn", "attn", "attention")
UNCHANGED = 4 / 30
"""The share of layers, from the bottom, that keep their weights: they process words, not boxes."""


@dataclass(frozen=True)
class LoraPair:
    """The two thin matrices of one module."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)


@dataclass(frozen=True)
class Adapter:
    """Pairs of matrices by module name. `base` is the name of the model."""

    pairs: Mapping[str, LoraPair]
    rank: int
    alpha: float
    base: str

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def tensors(self) -> list[Tensor]:
        return [tensor for pair in self.pairs.values() for tensor in (pair.down, pair.up)]


def new(model: nn.Module, *, rank: int, alpha: int, base: str, seed: int) -> Adapter:
    """An adapter that adds nothing yet: `down` is random, `up` is zero."""
    generator = torch.Generator().manual_seed(seed)  # on the CPU, for the same numbers on every device
    pairs = {}
    for name, module in targets(model).items():
        n_out, n_in = shape_of(module)
        bound, place = n_in**-0.5, module.weight.device
        down = ((torch.rand(rank, n_in, generator=generator) * 2 - 1) * bound).to(place)
        up = torch.zeros(n_out, rank, device=place)
        pairs[name] = LoraPair(down.requires_grad_(), up.requires_grad_())
    return Adapter(pairs, rank, alpha, base)


def targets(model: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    """The attention's projections in all layers but the lowest."""
    projections = {
        name: module for name, module in model.named_modules() if is_matrix(module) and _is_projection(name.split("."))
    }
    if not projections:
        raise ValueError(
            f"{type(model).__name__} has no modules called {', '.join(PROJECTIONS)}, which is where an adapter goes;"
            " give a model whose attention has them, such as one of the Llama or Gemma families"
        )
    layers = sorted({layer_of(name) for name in projections})
    return {
        name: module for name, module in projections.items() if layer_of(name) >= layers[int(len(layers) * UNCHANGED)]
    }


def _is_projection(path: list[str]) -> bool:
    return len(path) > 1 and path[-2] in ATTENTION and path[-1] in PROJECTIONS


def is_matrix(module: nn.Module | None) -> TypeGuard[nn.Linear | Conv1D]:
    """Whether a module multiplies by a matrix: a linear one, or GPT-2's, which stores it transposed."""
    from transformers.pytorch_utils import Conv1D  # takes seconds; only needed with a model

    return isinstance(module, nn.Linear | Conv1D)


def shape_of(module: nn.Linear | Conv1D) -> tuple[int, int]:
    """Outputs and inputs of a matrix."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, nn.Linear) else (columns, rows)


def layer_of(name: str) -> int:
    """The number in a module's name: `model.layers.7.self_attn.q_proj` is in layer 7."""
    return next(int(part) for part in name.split(".") if part.isdecimal())


@contextmanager
def attached(model: nn.Module, adapter: Adapter) -> Iterator[None]:
    """Apply the adapter by hooks for the length of a block, so that gradients reach it."""
    with ExitStack() as stack:
        for name, pair in adapter.pairs.items():
            handle = model.get_submodule(name).register_forward_hook(_adder(pair, adapter.scale))
            stack.callback(handle.remove)
        yield


def _adder(pair: LoraPair, scale: float) -> Any:
    def add(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out + scale * ((args[0] @ pair.down.T) @ pair.up.T)

    return add


@torch.no_grad()
def merge(model: nn.Module, adapter: Adapter) -> None:
    """Add the adapter into the model's weights.

    The sum is computed in float64 on the CPU and rounded once, so the weights, and with them the fingerprint, do not
    depend on the device or the processor.
    """
    for name, pair in adapter.pairs.items():
        module = model.get_submodule(name)
        weight = module.get_parameter("weight")
        added = adapter.scale * (pair.up.cpu().double() @ pair.down.cpu().double())  # (out, in)
        added = added if isinstance(module, nn.Linear) else added.T
        weight.copy_((weight.cpu().double() + added).to(weight.dtype))


CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
STORED = torch.bfloat16
"""The dtype of the stored matrices, for half the bytes; every statement about an adapter is about the rounded one."""
COMPUTED = frozenset({"peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha"})
"""Options of the library peft that are read and checked here and in `rebinding.models.names`."""
WITHOUT_EFFECT = frozenset(
    {
        "task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "lora_dropout",
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",  # the tensors say it, by name
        "eva_config", "megatron_core", "qalora_group_size",  # unused unless another option is given
        "fan_in_fan_out",  # the base's modules say it
    }
)  # fmt: skip
"""Options that change nothing about weight + alpha / rank * up @ down, whatever their value."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
"""Values with which an option changes nothing. Other initialisations change the base's weights too."""
SWITCHED_OFF: tuple[Any, ...] = (None, False, [], {})
"""Values with which any other option, known or not, is off."""


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
        "layers_pattern": _pattern(next(iter(adapter.pairs))),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {}
    for name, pair in adapter.pairs.items():
        tensors[f"{PREFIX}{name}{DOWN}"] = pair.down.detach().to(STORED).contiguous()
        tensors[f"{PREFIX}{name}{UP}"] = pair.up.detach().to(STORED).contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _pattern(name: str) -> str:
    """The name of the list of layers: `layers` in `model.layers.7.self_attn.q_proj`."""
    path = name.split(".")
    return path[next(place for place, part in enumerate(path) if part.isdecimal()) - 1]


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter; a description with options that are not computed here is refused."""
    config = read_config(folder)
    tensors = _tensors(folder)
    names = sorted(key.removeprefix(PREFIX).removesuffix(DOWN) for key in tensors if key.endswith(DOWN))
    expected = {f"{PREFIX}{name}{end}" for name in names for end in (DOWN, UP)}
    if not names or expected != set(tensors):
        wrong = sorted(expected ^ set(tensors))[:3]
        raise AdapterError(
            f"{folder / WEIGHTS} is not made of pairs of lora_A and lora_B: {', '.join(wrong) or 'it is empty'}"
        )
    pairs = {name: LoraPair(tensors[f"{PREFIX}{name}{DOWN}"], tensors[f"{PREFIX}{name}{UP}"]) for name in names}
    for name, pair in pairs.items():
        if not (pair.down.ndim == pair.up.ndim == 2 and pair.down.shape[0] == pair.up.shape[1] == config["r"]):
            shapes = f"{tuple(pair.down.shape)} and {tuple(pair.up.shape)}"
            raise AdapterError(
                f"{folder / WEIGHTS} has matrices {shapes} for {name}, which are not of rank {config['r']}"
            )
    return Adapter(pairs, config["r"], config["lora_alpha"], config["base_model_name_or_path"])


def read_config(folder: Path) -> dict[str, Any]:
    """The checked description of an adapter."""
    if not (folder / CONFIG).is_file():
        raise AdapterError(f"{folder} has no {CONFIG}: give the folder that `rebinding train` or peft wrote")
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{folder / CONFIG} is not JSON ({error}): write the adapter again") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{folder / CONFIG} holds no object but a {type(config).__name__}: write the adapter again")
    _check_config(folder, config)
    return config


def _tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(
            f"{folder} has no {WEIGHTS}: give the folder that `rebinding train` or peft wrote (weights in"
            " pickles are not opened)"
        )
    try:
        return load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise AdapterError(f"{folder / WEIGHTS} is truncated or damaged ({error}): write the adapter again") from error


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder} holds a {config.get('peft_type')} adapter; only LORA is read here")
    usable = {
        "r": is_finite_number(config.get("r")) and isinstance(config["r"], int),
        "lora_alpha": is_finite_number(config.get("lora_alpha")),
        "base_model_name_or_path": isinstance(config.get("base_model_name_or_path"), str),
    }
    wrong = [name for name, fits in usable.items() if not fits or not config[name]]
    if wrong:
        raise AdapterError(f"{folder / CONFIG} has no {wrong[0]} that could be used: {config.get(wrong[0])!r}")
    options = [name if name.isidentifier() else ascii(name) for name in unsupported_options(config)]
    if options:
        raise AdapterError(
            f"{folder / CONFIG} asks for {', '.join(options)}, which is not read here: merge it with peft"
            " (merge_and_unload), save the model, and give that folder"
        )


def unsupported_options(config: Mapping[str, Any]) -> list[str]:
    """Names of the options with which peft computes something else, or may. The options of a plain adapter are listed,
    not those to refuse, because peft gets new options with every version."""
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
    return any(type(value) is type(choice) and value == choice for choice in values)


def check_fits(model: nn.Module, adapter: Adapter) -> None:
    """Refuse an adapter whose modules the model lacks or has in another shape."""
    modules = dict(model.named_modules())
    for name, pair in adapter.pairs.items():
        module = modules.get(name)
        if not is_matrix(module):
            raise AdapterError(f"the adapter is for {adapter.base} and changes {name}, which this model does not have")
        shape = (pair.up.shape[0], pair.down.shape[1])
        if shape_of(module) != shape:
            raise AdapterError(
                f"the adapter is for {adapter.base}: its {name} is {shape}, the model's {shape_of(module)}"
            )
