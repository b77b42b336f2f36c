"""Position-free discovery against the five stages: same planted model, as many prompts, one run.

The stages look at every head at one token for each group, and are told which component it feeds. The search looks at
every head at every token, at queries, keys and values apart, and then measures every arrow between what it found. What
it leaves out is said in `rebinding/experiments/search/search.py`; with `screen="none"` every row is run.
On a plant most heads do nothing, as on a real model; on random weights all do, and nothing could be left out.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest

from benchmarks import median_seconds
from rebinding.experiments.paths.measure import discover, to_noise_pairs
from rebinding.experiments.prompts import EncodedPrompts, Stories
from rebinding.experiments.search.measure import search_pairs
from rebinding.experiments.search.request import Screen, SearchSettings
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.planted import build, parse
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import DesignName
from rebinding.task.prompts import Encoder

PROMPTS, SHARE = 36, 0.002


@pytest.fixture(scope="module")
def plant() -> Any:
    """A model of twelve layers with a known mechanism."""
    return build(parse("pointer@llama"))


@pytest.fixture(scope="module")
def times() -> dict[str, float]:
    """Seconds of what ran before."""
    return {}


def noise_pairs(plant: Any, design: DesignName) -> EncodedPrompts:
    """Clean prompts and their noise."""
    prompts = Stories(Encoder(plant.tokenizer))
    return prompts.encode(prompts.draw(prompts.design(design), range(PROMPTS), ("noise", "independent")))


def test_five_stages(benchmark: Any, plant: Any, times: dict[str, float]) -> None:
    """The alternative: told where to look. Pairs are recorded within, in both."""
    encoder, surgeon = Encoder(plant.tokenizer), TorchSurgeon(plant.model, derive(plant.model))
    pairs = noise_pairs(plant, "partner_second")  # a partner in each
    benchmark.group = "search"
    benchmark.extra_info.update(units=1, baseline=True)
    benchmark.pedantic(lambda: discover(surgeon, to_noise_pairs(encoder, pairs)), rounds=2, warmup_rounds=1)
    times["stages"] = median_seconds(benchmark)


@pytest.mark.parametrize("screen", get_args(Screen))
def test_search(benchmark: Any, plant: Any, times: dict[str, float], screen: Screen) -> None:
    """Every head, every token, every component."""
    surgeon = TorchSurgeon(plant.model, derive(plant.model))
    pairs = search_pairs(Encoder(plant.tokenizer), noise_pairs(plant, "counterbalanced"))
    settings = SearchSettings(
        SHARE, min_attention=0.0 if screen == "none" else SearchSettings().min_attention, screen=screen
    )
    benchmark.group = "search"
    benchmark.extra_info.update(units=1)

    def search() -> object:
        return Search(pairs, settings, MeasuredSteps(surgeon, pairs, settings.block)).graph()

    benchmark.pedantic(search, rounds=1, warmup_rounds=0)
    median = median_seconds(benchmark)
    print(f"\nsearch, screen {screen}: {median / times['stages']:.1f} times the five stages")
