"""Suggestions for a misspelt name: the known names that are nearest to it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType

from rebinding.learned.shelf import BASES, learned_models
from rebinding.paper.numbers import ALIASES, checkpoint
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS

MOST = 3
"""The most names that are suggested."""
BAND = 0.1
"""How much less similar than the nearest a suggested name may be; 1 is the same name."""
LENGTH = 100
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


def suggestion(name: str) -> str:
    """` (did you mean X or Y?)`, or nothing where no known name is near."""
    names = nearest(name)
    return f" (did you mean {' or '.join(names)}?)" if names else ""


def nearest(name: str) -> list[str]:
    """The known names nearest to an unknown one; the nearest comes first."""
    prefix, colon, rest = name.lower().partition(":")
    if colon and prefix in names_by_prefix():
        names, text = names_by_prefix()[prefix], rest.partition("?")[0][:LENGTH]
        if text in names:  # the error is in the options after the name
            return []
    else:
        names, text = names_without_prefix(), name.lower()[:LENGTH]
        if text in names:
            return [names[text]]
    near = difflib.get_close_matches(text, names, n=MOST)
    best = max((_likeness(text, spelling) for spelling in near), default=0.0)
    return list(dict.fromkeys(names[spelling] for spelling in near if _likeness(text, spelling) >= best - BAND))


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
