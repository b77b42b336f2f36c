"""What a user may call a subject, and what each name stands for.

gemma2-9b                     one of the paper's four models, from the Hub
gemma2-9b=FOLDER              a folder, to be judged as that model
planted:pointer@gemma2        a model whose mechanism we wrote
shape:gemma2-9b               random weights in the shape of that model
learned:smollm2?seed=0        a real model with an adapter that we trained (see `rebinding.learned`)
FOLDER                        what save_pretrained wrote; or an adapter, whose description says for which model
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

from rebinding.learned.files import AdapterError
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
    """A model of the paper, at the head of its Hub repository's main branch. Every subject records the commit that was
    loaded. `dtype` is the one in which the weights are published and in which claims are judged."""

    name: str
    hub_id: str
    form: Form
    dtype: Dtype = "bfloat16"


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {one: Alias(one, checkpoint(one).hub, checkpoint(one).chat) for one in PAPERS}
)
"""The four stand in one file: `rebinding/paper/published.toml`."""


@dataclass(frozen=True)
class Origin:
    """What a name stands for. `target` is a specification, an alias, a path or a Hub id, by `kind`."""

    kind: Source
    target: str
    alias: Alias | None = None
    revision: str | None = None


def origin(name: str, *, revision: str | None = None) -> Origin:
    """Read a name, and refuse one that stands for no model; nothing is loaded or fetched.

    A `revision` may stand in the name or beside it, and only for models on the Hub. Whether the Hub has a model is
    known when it is loaded.
    """
    found = _origin(name.strip())
    if revision is None:
        return found
    if found.kind != "hub":
        raise UnknownName(f"{name!r} is no Hub model and has no revisions; leave revision={revision!r} out")
    if "@" in name and found.revision != revision:
        raise UnknownName(f"{name!r} names revision {found.revision}, the argument {revision}; give one of the two")
    return Origin("hub", found.target, found.alias, revision)


def _origin(name: str) -> Origin:
    if not name:
        raise UnknownName(f"an empty name; {_what_names_are()}")
    if not name.isprintable():
        raise UnknownName(f"{name!a} has characters that cannot be seen and could steer a terminal; rename it")
    prefix, colon, rest = name.partition(":")
    if colon and prefix in ("planted", "learned"):
        return _built_here(name, rest)
    if colon and prefix == "shape":
        return Origin("shape", rest, _alias(rest, "shape:"))
    here = os.path.expanduser(name)
    if os.path.isdir(here) or (os.path.isfile(here) and name.endswith(GGUF)):
        return _on_disk(name)
    left, equals, path = name.partition("=")
    if equals:
        return _on_disk(path, _alias(left, ""))
    if name in ALIASES:
        return Origin("hub", ALIASES[name].hub_id, ALIASES[name])
    if _looks_like_path(name) or name.endswith(GGUF):
        return _on_disk(name)
    return _hub(name)


def _built_here(name: str, specification: str) -> Origin:
    """A planted or a learned model; that mechanism, variant, architecture and adapter exist is checked."""
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
    found = os.path.expanduser(path)  # pathlib raises where there is no such user, or a name is too long
    if os.path.isfile(found) and path.endswith(GGUF):
        return Origin("gguf", str(Path(found)), alias)
    if not os.path.isdir(found):
        raise NoSuchFolder(
            f"there is no {'file' if path.endswith(GGUF) else 'folder'} {path!r} (seen from {os.getcwd()}); give the"
            f" folder that save_pretrained wrote, a file that ends with {GGUF}, or a Hub id"
        )
    if not _is_adapter(found):
        return Origin("folder", str(Path(found)), alias)
    if alias is not None:
        raise UnknownName(f"{path!r} is an adapter, with which {alias.name} is another model; leave {alias.name}= out")
    return Origin("adapter", str(Path(found)))


def _is_adapter(folder: str) -> bool:
    """An adapter without a model beside it."""
    there = [os.path.isfile(os.path.join(folder, name)) for name in ("adapter_config.json", "config.json")]
    return there == [True, False]


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
        raise UnknownName(f"unknown model {name!r}{suggestion(repository)}; {_what_names_are()}")
    alias = next((one for one in ALIASES.values() if one.hub_id == repository), None)
    return Origin("hub", repository, alias, revision or None)


def _what_names_are() -> str:
    return (
        f"a model is one of {', '.join(ALIASES)}, ALIAS=FOLDER, planted:MECHANISM@ARCHITECTURE, learned:smollm2, "
        "shape:ALIAS, a folder (of a model or of an adapter), a file FILE.gguf, or a Hub id owner/name, with"
        " @REVISION if need be"
    )
