"""The search that is not told where to look against the five stages, which are: same plant, as many prompts, one run.

The stages look at every head at one token for each group, and are told which component it feeds. The search looks at
every head at every token, at queries, keys and values apart, and then measures every arrow between what it found. What
it leaves out is said in `rebinding/experiments/anywhere/effects.py`; with `exhaustive` every row is run.
On a plant most heads do nothing, as on a real model; on random weights all do, and nothing could be left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from rebinding.experiments.anywhere.request import Settings
from rebinding.experiments.anywhere.search import Search
from rebinding.experiments.circuit.discovery import discover
from rebinding.planted import build, parse
from rebinding.study.anywhere import search_pairs
from rebinding.study.circuit import with_labels
from rebinding.study.drawing import draw
from rebinding.surgery import TorchSurgeon, derive
from rebinding.world.designs import design
from rebinding.world.prompts import Encoder

PROMPTS, SHARE = 36, 0.002


@pytest.fixture(scope="module")
def plant() -> Any:
    """A model of twelve layers with a known mechanism."""
    return build(parse("pointer@llama"))


@pytest.fixture(scope="module")
def times() -> dict[str, float]:
    """Seconds of what ran before."""
    return {}


def test_five_stages(benchmark: Any, plant: Any, times: dict[str, float]) -> None:
    """The alternative: told where to look. Pairs are recorded within, in both."""
    encoder, surgeon = Encoder(plant.tokenizer), TorchSurgeon(plant.model, derive(plant.model))
    drawn = draw(encoder, design("partner_second"), range(PROMPTS), ("noise", "independent"))  # a partner in each
    benchmark.group = "search"
    benchmark.extra_info.update(units=1, baseline=True)
    benchmark.pedantic(lambda: discover(surgeon, with_labels(encoder, drawn)), rounds=2, warmup_rounds=1)
    times["stages"] = benchmark.stats.stats.median


@pytest.mark.parametrize("exhaustive", [False, True], ids=["as it is", "exhaustive"])
def test_search(benchmark: Any, plant: Any, times: dict[str, float], exhaustive: bool) -> None:
    """Every head, every token, every component."""
    surgeon = TorchSurgeon(plant.model, derive(plant.model))
    pairs = search_pairs(Encoder(plant.tokenizer), design("counterbalanced"), range(PROMPTS))
    settings = Settings(SHARE, listens=0.0 if exhaustive else Settings().listens, exhaustive=exhaustive)
    benchmark.group = "search"
    benchmark.extra_info.update(units=1)
    benchmark.pedantic(lambda: Search(surgeon, pairs, settings).graph(), rounds=1, warmup_rounds=0)
    took = benchmark.stats.stats.median
    print(f"\nsearch, {'every row' if exhaustive else 'as it is'}: {took / times['stages']:.1f} times the five stages")
