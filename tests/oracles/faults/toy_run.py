"""A run of forty small shards that cost nothing to compute."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd

from rebinding.evidence import Evidence, merge
from rebinding.evidence.store import Store

BLOCKS = 40


def blocks(root: Path, count: int = BLOCKS, computed: list[int] | None = None) -> Evidence:
    """Roots of numbers, a shard each; `computed` gets those that were computed."""

    def compute(item: int) -> Evidence:
        if computed is not None:
            computed.append(item)
        return Evidence("toy", pd.DataFrame({"item": [item], "root": [item**0.5]}), {})

    shelf = Store(root).shelf(loaded_model="toy", dtype="float32")
    return merge(
        [shelf.store.remember(Evidence, "toy", shelf.key([str(item)]), partial(compute, item)) for item in range(count)]
    )
