"""Model names, what each stands for, and which known name a misspelt one is near to.

gemma2-9b                     one of the paper's four models, from the Hub
gemma2-9b=FOLDER              a folder, to be judged as that model
planted:pointer@gemma2        a model with a known mechanism, written by hand
shape:gemma2-9b               random weights in the shape of that model
learned:smollm2?seed=0        a real model with an adapter that we trained (see `rebinding.learned`)
FOLDER                        a folder that save_pretrained wrote; or an adapter, whose description names its base
FILE.gguf                     a model in one file, in few bits; also as ALIAS=FILE.gguf
owner/name, owner/name@REV    a model on the Hub

An adapter trained with peft, or with `rebinding train`, is a folder with two files and no model. The base is
found by `base_model_name_or_path`, which may be any model name: a folder, FILE.gguf, a Hub id (at the adapter's
`revision`), or the name of a base that adapters of this project are for. Configuration and
tokenizer are the base's; weights are the base's with the adapter added.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.learned.lora import CONFIG, AdapterError, read_config
from rebinding.learned.shelf import BASES, PaperFamily, learned_models
from rebinding.learned.shelf import parse as parse_learned
from rebinding.models.devices import Dtype
from rebinding.models.errors import ModelError, UnfitAdapter, UnknownName
from rebinding.paper.numbers import ALIASES as PAPERS
from rebinding.paper.numbers import checkpoint
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS, WiringError
from rebinding.planted import parse as parse_planted
from rebinding.planted.variants import variant_of
from rebinding.task.chat import Form

GGUF = ".gguf"
Source: TypeAlias = Literal["planted", "learned", "shape", "folder", "adapter", "gguf", "hub"]
MAX_SUGGESTIONS = 3
SIMILARITY_RANGE = 0.1
"""How much less similar than the nearest a suggested name may be; 1 is the same name."""
COMPARED_CHARACTERS = 100
"""Characters of a name that are compared; no known name is longer."""
HUB_IDS: tuple[str, ...] = (
    *(f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt")),
    "distilbert/distilgpt2",
    *(f"HuggingFaceTB/SmolLM2-{size}{kind}" for size in ("135M", "360M", "1.7B") for kind in ("", "-Instruct")),
    *(f"EleutherAI/pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b")),
    *(f"Qwen/Qwen2.5-{size}-Instruct" for size in ("0.5B", "1.5B", "3B", "7B")),
    *(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B")),
    *("google/gemma-2-2b-it", "google/gemma-3-270m-it", "google/gemma-3-1b-it", "google/gemma-3-4b-it"),
    *("meta-llama/Llama-3.2-1B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3"),
)
"""Models on the Hub that people name without their owner, besides those of the paper."""


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
        raise UnknownName(
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


def suggestion(name: str) -> str:
    """` (did you mean X or Y?)`, or nothing where no known name is near."""
    names = nearest(name)
    return f" (did you mean {' or '.join(names)}?)" if names else ""


def nearest(name: str) -> list[str]:
    """The known names nearest to an unknown one; the nearest comes first."""
    prefix, colon, rest = name.lower().partition(":")
    if colon and prefix in names_by_prefix():
        names, text = names_by_prefix()[prefix], rest.partition("?")[0][:COMPARED_CHARACTERS]
        if text in names:  # the error is in the options after the name
            return []
    else:
        names, text = names_without_prefix(), name.lower()[:COMPARED_CHARACTERS]
        if text in names:
            return [names[text]]
    near = difflib.get_close_matches(text, names, n=MAX_SUGGESTIONS)
    best = max((_likeness(text, spelling) for spelling in near), default=0.0)
    return list(
        dict.fromkeys(names[spelling] for spelling in near if _likeness(text, spelling) >= best - SIMILARITY_RANGE)
    )


@cache
def names_by_prefix() -> Mapping[str, Mapping[str, str]]:
    """Every name with a prefix, by prefix and by the rest of the name."""
    names_by_kind = {
        "planted": planted_names(),
        "learned": [*(f"learned:{base}" for base in BASES), *(adapter.name for adapter in learned_models())],
        "shape": [f"shape:{alias}" for alias in ALIASES],
    }
    return MappingProxyType({prefix: _by_rest(names) for prefix, names in names_by_kind.items()})


@cache
def names_without_prefix() -> Mapping[str, str]:
    """Every known name, by itself and by its common short form: the last part of a Hub id, `pointer` for
    `planted:pointer`, `smollm2` for `learned:smollm2`."""
    hub = [*(checkpoint(alias).hub for alias in ALIASES), *HUB_IDS]
    names = {name.rpartition("/")[2].lower(): name for name in hub} | {name.lower(): name for name in hub}
    for by_rest in names_by_prefix().values():
        names |= {name.lower(): name for name in by_rest.values()} | dict(by_rest)
    return MappingProxyType(names | {alias: alias for alias in ALIASES})


def planted_names() -> Iterator[str]:
    """Every mechanism, with every variant that it has, alone and on every architecture."""
    for mechanism in MECHANISMS:
        fitting = [name for name, variant in VARIANTS.items() if mechanism in variant.mechanisms]
        for what in (mechanism, *(f"{mechanism}+{variant}" for variant in fitting)):
            yield from (f"planted:{what}", *(f"planted:{what}@{architecture}" for architecture in ARCHITECTURES))


def _likeness(text: str, spelling: str) -> float:
    return difflib.SequenceMatcher(None, spelling, text).ratio()


def _by_rest(names: Iterable[str]) -> Mapping[str, str]:
    return MappingProxyType({name.partition(":")[2].lower(): name for name in names})


@contextmanager
def as_unfit_adapter() -> Iterator[None]:
    """Turn errors of an adapter's files into `UnfitAdapter`."""
    try:
        yield
    except AdapterError as error:
        raise UnfitAdapter(str(error)) from error


@as_unfit_adapter()
def folder_of_adapter(model_origin: Origin) -> Path:
    """The folder of the adapter of a learned model or of an adapter."""
    return parse_learned(model_origin.target).find() if model_origin.kind == "learned" else Path(model_origin.target)


def family_of(learned: Origin) -> PaperFamily:
    """The family of a learned model's base."""
    return parse_learned(learned.target).base.family


@as_unfit_adapter()
def of_base(model_origin: Origin) -> Origin:
    """The base of an adapter; any other model is its own base."""
    if model_origin.kind == "learned":
        return Origin("gguf", str(parse_learned(model_origin.target).base.find()))
    return _base_of_folder(Path(model_origin.target)) if model_origin.kind == "adapter" else model_origin


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
        raise UnfitAdapter(f"{folder} is an adapter for {name!r}: {error}. {_advice(folder)}") from error
    if base.kind not in ("folder", "gguf", "hub"):
        raise UnfitAdapter(
            f"{folder} is an adapter for {name!r}, which is a {base.kind} and no base. {_advice(folder)}"
        )
    return base


def _advice(folder: Path) -> str:
    return f"Write the base's folder, FILE.gguf or Hub id into {folder / CONFIG}, as base_model_name_or_path"
