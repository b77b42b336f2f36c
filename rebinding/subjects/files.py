"""A model's folder, looked at before anything in it is run or read into memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rebinding.subjects.claimed import check_layers, files_of_index
from rebinding.subjects.errors import (
    AdapterBeside,
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
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_description(folder: Path) -> None:
    """Refuse a model for what its configuration and its tokenizer files say."""
    there = (folder / "config.json").is_file()
    if not there and (folder / "adapter_config.json").is_file():  # in a folder of one's own it is a subject
        raise UnfitAdapter(
            f"{folder} holds an adapter and no model: fetch all of it (`hf download OWNER/NAME --local-dir FOLDER`) and"
            " pass that folder"
        )
    if not there:
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
        told = config["quantization_config"]
        method = told.get("quant_method", "quantised") if isinstance(told, dict) else "quantised"
        raise QuantisedModel(
            f"{folder} holds {method} weights: edits are checked against exact arithmetic, so pass the checkpoint "
            "that it was made from, with dtype='bfloat16' if memory is short"
        )
    if (folder / "adapter_config.json").exists():
        raise AdapterBeside(
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
    """The names of a model's safetensors files, by its index if it has one."""
    if (folder / INDEX).is_file():
        return files_of_index(folder / INDEX, _read(folder / INDEX))
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
    check_layers(folder, _read(folder / "config.json"), tensors)


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
