"""An adapter as a subject: which model it is for, by the name that its description gives.

Who trained an adapter with peft, or with `python -m rebinding train`, has a folder with two files and no model in it.
The base is found by `base_model_name_or_path`, which may be whatever a subject may be called: a folder, FILE.gguf, a
Hub id (at the adapter's `revision`), or the name of a base that adapters of this project are for. Configuration and
tokenizer are the base's; weights are the base's with the adapter added.
"""

from __future__ import annotations

from pathlib import Path

from rebinding.learned.files import CONFIG, AdapterError, described
from rebinding.learned.shelf import BASES, parse
from rebinding.models.errors import ModelError, NoBase
from rebinding.models.names import Origin, origin


def folder_of_adapter(found: Origin) -> Path:
    """Where the adapter of a learned or an adapted subject lies."""
    try:
        return parse(found.target).folder if found.kind == "learned" else Path(found.target)
    except AdapterError as error:
        raise NoBase(str(error)) from error


def of_base(found: Origin) -> Origin:
    """What an adapter is for; any other subject is its own base."""
    try:
        if found.kind == "learned":
            return Origin("gguf", str(parse(found.target).base.find()))
        if found.kind == "adapter":
            return _named(Path(found.target))
    except AdapterError as error:
        raise NoBase(str(error)) from error
    return found


def _named(folder: Path) -> Origin:
    config = described(folder)
    name, revision = config["base_model_name_or_path"], config.get("revision")
    if name in BASES:
        return Origin("gguf", str(BASES[name].find()))
    try:
        base = origin(name)
        if base.kind == "hub" and revision:
            base = origin(name, revision=revision)
    except ModelError as error:
        raise NoBase(f"{folder} is an adapter for {name!r}: {error}. {_otherwise(folder)}") from error
    if base.kind not in ("folder", "gguf", "hub"):
        raise NoBase(f"{folder} is an adapter for {name!r}, which is a {base.kind} and no base. {_otherwise(folder)}")
    return base


def _otherwise(folder: Path) -> str:
    return f"Write the base's folder, FILE.gguf or Hub id into {folder / CONFIG}, as base_model_name_or_path"
