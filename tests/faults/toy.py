"""A run of forty small shards that cost nothing to compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.evidence.blocks import Tick, in_blocks
from rebinding.evidence.store import Store

BLOCKS = 40


def blocks(root: Path, count: int = BLOCKS, seen: list[int] | None = None) -> Evidence:
    """Roots of numbers, a shard each; `seen` gets those that were computed."""

    def compute(part: Sequence[int], tick: Tick) -> Evidence:
        if seen is not None:
            seen.extend(part)
        tick(len(part))
        return Evidence("toy", pd.DataFrame({"item": part, "root": [item**0.5 for item in part]}), {})

    shelf = Store(root).shelf(subject="toy", dtype="float32")
    return in_blocks(
        range(count), compute, experiment="toy", size=1, cost=lambda item: 1, content=str, shelf=shelf, progress=False
    )
