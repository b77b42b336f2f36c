"""Adapters: find the base model that an adapter's description names.

An adapter trained with peft, or with `rebinding train`, is a folder with two files and no model. The base is
found by `base_model_name_or_path`, which may be any model name: a folder, FILE.gguf, a Hub id (at the adapter's
`revision`), or the name of a base that adapters of this project are for. Configuration and
tokenizer are the base's; weights are the base's with the adapter added.
"""

from __future__ import annotations

from pathlib import Path

from rebinding.learned.lora import CONFIG, AdapterError, read_config
from rebinding.learned.shelf import BASES, Family, parse
from rebinding.models.errors import ModelError, NoBase
from rebinding.models.names import Origin, origin


def folder_of_adapter(model_origin: Origin) -> Path:
    """The folder of the adapter of a learned model or of an adapter."""
    try:
        return parse(model_origin.target).find() if model_origin.kind == "learned" else Path(model_origin.target)
    except AdapterError as error:
        raise NoBase(str(error)) from error


def family_of(learned: Origin) -> Family:
    """The family of a learned model's base."""
    return parse(learned.target).base.family


def of_base(model_origin: Origin) -> Origin:
    """The base of an adapter; any other model is its own base."""
    try:
        if model_origin.kind == "learned":
            return Origin("gguf", str(parse(model_origin.target).base.find()))
        if model_origin.kind == "adapter":
            return _base_of_folder(Path(model_origin.target))
    except AdapterError as error:
        raise NoBase(str(error)) from error
    return model_origin


def _base_of_folder(folder: Path) -> Origin:
    config = read_config(folder)
    name, revision = config["base_model_name_or_path"], config.get("revision")
    if name in BASES:
        return Origin("gguf", str(BASES[name].find()))
    try:
        base = origin(name)
        if base.kind == "hub" and revision:
            base = origin(name, revision=revision)
    except ModelError as error:
        raise NoBase(f"{folder} is an adapter for {name!r}: {error}. {_advice(folder)}") from error
    if base.kind not in ("folder", "gguf", "hub"):
        raise NoBase(f"{folder} is an adapter for {name!r}, which is a {base.kind} and no base. {_advice(folder)}")
    return base


def _advice(folder: Path) -> str:
    return f"Write the base's folder, FILE.gguf or Hub id into {folder / CONFIG}, as base_model_name_or_path"
