"""Model names, and what each stands for.

gemma2-9b                     one of the paper's four models, from the Hub
gemma2-9b=FOLDER              a folder, to be judged as that model
planted:pointer@gemma2        a model with a known mechanism, written by hand
shape:gemma2-9b               random weights in the shape of that model
learned:smollm2?seed=0        a real model with an adapter that we trained (see `rebinding.learned`)
FOLDER                        a folder that save_pretrained wrote; or an adapter, whose description names its base
FILE.gguf                     a model in one file, in few bits; also as ALIAS=FILE.gguf
owner/name, owner/name@REV    a model on the Hub
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.learned.lora import AdapterError
from rebinding.learned.shelf import parse as parse_learned
from rebinding.models.devices import Dtype
from rebinding.models.errors import NoSuchFolder, UnknownName
from rebinding.models.suggestions import suggestion
from rebinding.paper.numbers import ALIASES as PAPERS
from rebinding.paper.numbers import checkpoint
from rebinding.planted import WiringError
from rebinding.planted import parse as parse_planted
from rebinding.planted.variants import variant_of
from rebinding.task.chat import Form

GGUF = ".gguf"
Source: TypeAlias = Literal["planted", "learned", "shape", "folder", "adapter", "gguf", "hub"]


@dataclass(frozen=True)
class Alias:
    """A model of the paper, at the head of its Hub repository's main branch. Every loaded model records its commit.
    `dtype` is the dtype in which the weights are published and claims are judged."""

    name: str
    hub_id: str
    form: Form
    dtype: Dtype = "bfloat16"


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {name: Alias(name, checkpoint(name).hub, checkpoint(name).chat) for name in PAPERS}
)
"""The paper's four models, from `rebinding/paper/published.toml`."""


@dataclass(frozen=True)
class Origin:
    """What a name stands for. `target` is a specification, an alias, a path or a Hub id, by `kind`."""

    kind: Source
    target: str
    alias: Alias | None = None
    revision: str | None = None


def origin(name: str, *, revision: str | None = None) -> Origin:
    """Read a name, and refuse one that stands for no model; nothing is loaded or fetched.

    A `revision` may be part of the name or an argument, and only for models on the Hub. Whether the Hub has a model
    shows when it is loaded.
    """
    model_origin = _origin(name.strip())
    if revision is None:
        return model_origin
    if model_origin.kind != "hub":
        raise UnknownName(f"{name!r} is no Hub model and has no revisions; leave revision={revision!r} out")
    if "@" in name and model_origin.revision != revision:
        raise UnknownName(
            f"{name!r} names revision {model_origin.revision}, the argument {revision}; give one of the two"
        )
    return Origin("hub", model_origin.target, model_origin.alias, revision)


def _origin(name: str) -> Origin:
    if not name:
        raise UnknownName(f"an empty name; {_naming_help()}")
    if not name.isprintable():
        raise UnknownName(f"{name!a} has characters that cannot be seen and could steer a terminal; rename it")
    prefix, colon, rest = name.partition(":")
    if colon and prefix in ("planted", "learned"):
        return _built_here(name, rest)
    if colon and prefix == "shape":
        return Origin("shape", rest, _alias(rest, "shape:"))
    path_here = os.path.expanduser(name)
    if os.path.isdir(path_here) or (os.path.isfile(path_here) and name.endswith(GGUF)):
        return _on_disk(name)
    alias, equals, path = name.partition("=")
    if equals:
        return _on_disk(path, _alias(alias, ""))
    if name in ALIASES:
        return Origin("hub", ALIASES[name].hub_id, ALIASES[name])
    if _looks_like_path(name) or name.endswith(GGUF):
        return _on_disk(name)
    return _hub(name)


def _built_here(name: str, specification: str) -> Origin:
    """A planted or a learned model whose mechanism, variant, architecture and adapter exist."""
    try:
        if name.startswith("learned:"):
            parse_learned(specification)
            return Origin("learned", specification)
        plant = parse_planted(specification)
        if plant.variant is not None:
            variant_of(plant.mechanism, plant.variant)
        return Origin("planted", specification)
    except (WiringError, AdapterError) as error:
        raise UnknownName(f"{name}{suggestion(name)}: {error}") from error


def _alias(name: str, prefix: str) -> Alias:
    if name not in ALIASES:
        raise UnknownName(
            f"{prefix}{name}: {name!r} is none of the paper's models{suggestion(prefix + name)}; "
            f"they are called {', '.join(ALIASES)}"
        )
    return ALIASES[name]


def _on_disk(path: str, alias: Alias | None = None) -> Origin:
    expanded = os.path.expanduser(path)  # pathlib raises where there is no such user, or a name is too long
    if os.path.isfile(expanded) and path.endswith(GGUF):
        return Origin("gguf", str(Path(expanded)), alias)
    if not os.path.isdir(expanded):
        raise NoSuchFolder(
            f"there is no {'file' if path.endswith(GGUF) else 'folder'} {path!r} (seen from {os.getcwd()}); give the"
            f" folder that save_pretrained wrote, a file that ends with {GGUF}, or a Hub id"
        )
    if not _is_adapter(expanded):
        return Origin("folder", str(Path(expanded)), alias)
    if alias is not None:
        raise UnknownName(f"{path!r} is an adapter, with which {alias.name} is another model; leave {alias.name}= out")
    return Origin("adapter", str(Path(expanded)))


def _is_adapter(folder: str) -> bool:
    """Whether a folder holds an adapter and no model."""
    has_files = [os.path.isfile(os.path.join(folder, name)) for name in ("adapter_config.json", "config.json")]
    return has_files == [True, False]


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "~", os.sep))
        or name.partition("@")[0].count("/") > 1
        or (os.sep != "/" and os.sep in name)
    )


def _hub(name: str) -> Origin:
    repository, at, revision = name.partition("@")
    if at and not revision:
        raise UnknownName(f"{name!r} ends with @ but names no revision; write owner/name@REVISION or leave the @ out")
    if repository in ALIASES:
        return Origin("hub", ALIASES[repository].hub_id, ALIASES[repository], revision)
    if "/" not in repository:
        raise UnknownName(f"unknown model {name!r}{suggestion(repository)}; {_naming_help()}")
    alias = next((alias for alias in ALIASES.values() if alias.hub_id == repository), None)
    return Origin("hub", repository, alias, revision or None)


def _naming_help() -> str:
    return (
        f"a model is one of {', '.join(ALIASES)}, ALIAS=FOLDER, planted:MECHANISM@ARCHITECTURE, learned:smollm2, "
        "shape:ALIAS, a folder (of a model or of an adapter), a file FILE.gguf, or a Hub id owner/name, with"
        " @REVISION if need be"
    )
