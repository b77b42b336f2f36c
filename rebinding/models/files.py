"""Checks of a model's folder before anything in it is run or loaded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rebinding.models.errors import (
    AdapterNextToModel,
    CustomCode,
    DamagedWeights,
    MissingTokenizer,
    MissingWeights,
    NoSuchFolder,
    PickledWeights,
    QuantisedModel,
    SlowTokenizer,
    UnfitAdapter,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST = 100_000_000
"""Bytes of a JSON file that are read; the largest tokenizers have a third of that."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers in configurations."""
TOWERS = ("text_config", "llm_config", "language_config")
"""Sections of the text model in configurations of multimodal models."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_description(folder: Path) -> None:
    """Refuse a model whose configuration or tokenizer files are unsuitable."""
    has_config = (folder / "config.json").is_file()
    if (
        not has_config and (folder / "adapter_config.json").is_file()
    ):  # a folder with only an adapter can be loaded by name
        raise UnfitAdapter(
            f"{folder} holds an adapter and no model: fetch all of it (`hf download OWNER/NAME --local-dir FOLDER`) and"
            " pass that folder"
        )
    if not has_config:
        raise NoSuchFolder(f"{folder} has no config.json: it is not a folder that save_pretrained wrote")
    config = _read(folder / "config.json")
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).is_file() and "auto_map" in _read(folder / name):
            raise CustomCode(
                f"{folder / name} asks for the model's own Python code (auto_map), which is never run here. If "
                f"transformers itself implements {config.get('model_type', 'this model')!r}, take auto_map out of a "
                "copy of the folder and pass the copy; otherwise this model cannot be studied."
            )
    if config.get("quantization_config"):
        settings = config["quantization_config"]
        method = settings.get("quant_method", "quantised") if isinstance(settings, dict) else "quantised"
        raise QuantisedModel(
            f"{folder} holds {method} weights: edits are checked against exact arithmetic, so pass the checkpoint "
            "that it was made from, with dtype='bfloat16' if memory is short"
        )
    if (folder / "adapter_config.json").exists():
        raise AdapterNextToModel(
            f"{folder} holds an adapter beside a model: transformers would add it where peft is installed, and only "
            "there. Merge it (merge_and_unload), save the whole with save_pretrained, and pass that folder."
        )
    _check_tokenizer(folder)


def _check_tokenizer(folder: Path) -> None:
    if (folder / "tokenizer.json").is_file():
        return
    traces = ("tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if any((folder / name).is_file() for name in traces):
        raise slow_tokenizer(folder)
    raise MissingTokenizer(f"{folder} holds no tokenizer: save one there with tokenizer.save_pretrained")


def slow_tokenizer(folder: Path) -> SlowTokenizer:
    """The refusal of a tokenizer that is not a fast one."""
    return SlowTokenizer(
        f"{folder} has no fast tokenizer (tokenizer.json): roles are found by character offsets, which slow ones do "
        "not give. If the family has a fast one, write it with "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
    )


def weight_files(folder: Path) -> list[str]:
    """The names of a model's safetensors files, from its index if it has one."""
    if (folder / INDEX).is_file():
        return _files_of_index(folder / INDEX, _read(folder / INDEX))
    return [SINGLE]


def check_weights(folder: Path) -> None:
    """Refuse weights that are absent, pickled, cut short or of other layers. Reads headers, not tensors."""
    missing = [name for name in weight_files(folder) if not (folder / name).is_file()]
    if missing and any(path for pattern in PICKLES for path in folder.glob(pattern)):
        raise PickledWeights(
            f"{folder} stores its weights as pickles, which can run code when they are opened: convert them once, on a "
            "machine where you trust the file, with model.save_pretrained(FOLDER), and pass that folder"
        )
    if missing:
        raise MissingWeights(f"{folder} lacks {', '.join(missing)}: fetch the model again, completely")
    tensors: list[str] = []
    for name in weight_files(folder):
        try:
            with safe_open(folder / name, framework="pt") as file:
                tensors += file.keys()
        except SafetensorError as error:
            size = (folder / name).stat().st_size
            raise DamagedWeights(
                f"{folder / name} ({size} bytes) is truncated or damaged ({error}): fetch it again. A file of some "
                "hundred bytes is a pointer that `git lfs pull` replaces."
            ) from error
    _check_layers(folder, _read(folder / "config.json"), tensors)


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MOST:
        raise NoSuchFolder(f"{path} has {size} bytes; nothing that describes a model has more than {MOST}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NoSuchFolder(f"{path} is not JSON ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise NoSuchFolder(f"{path} holds no object but a {type(content).__name__}: fetch it again")
    return content


def _files_of_index(path: Path, index: Mapping[str, Any]) -> list[str]:
    """The files that an index names: plain names, in the folder that the index is in."""
    files = index.get("weight_map")
    names = set(files.values()) if isinstance(files, dict) and all(map(_is_name, files.values())) else set()
    if not names:
        raise DamagedWeights(
            f"{path} names no weights, or files that are no .safetensors beside it: fetch the model again, completely"
        )
    return sorted(names)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value and value.endswith(".safetensors")


def _check_layers(folder: Path, config: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a configuration whose number of layers differs from the weights'.

    With fewer, transformers would silently drop the rest; with a billion, it would begin to build them.
    """
    stated = {name: value for name, value in _stated_layers(config) if value is not None}
    counts = {prefix: len(numbers) for prefix, numbers in _stacks(tensors).items()}
    wrong = {name: value for name, value in stated.items() if value not in counts.values() or isinstance(value, bool)}
    if counts and wrong:
        name, value = next(iter(wrong.items()))
        has = ", ".join(f"{count} of {prefix}" for prefix, count in sorted(counts.items()))
        raise DamagedWeights(
            f"{folder / 'config.json'} says {name} = {str(value)[:40]}, its weights have {has}: they do not belong "
            "together. Fetch both again."
        )


def _stated_layers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    texts = [config[name] for name in TOWERS if isinstance(config.get(name), dict)]
    for part in texts or [config]:
        yield from ((name, part[name]) for name in LAYERS if name in part)


def _stacks(tensors: Iterable[str]) -> Mapping[str, set[int]]:
    """The numbers of a model's numbered parts, by prefix: `model.layers` has 0, 1, 2 and so on."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        parts = name.split(".")
        first = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        if first is not None:
            numbers[".".join(parts[:first])].add(int(parts[first]))
    return numbers
