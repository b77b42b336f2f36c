"""A run of forty small shards that cost nothing to compute."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd

from rebinding.evidence import Evidence, merge
from rebinding.evidence.store import Store, cache_key

BLOCKS = 40


def blocks(root: Path, count: int = BLOCKS, computed: list[int] | None = None) -> Evidence:
    """Roots of numbers, a shard each; `computed` gets those that were computed."""

    def compute(item: int) -> Evidence:
        if computed is not None:
            computed.append(item)
        return Evidence("toy", pd.DataFrame({"item": [item], "root": [item**0.5]}), {})

    store, keys = Store(root), [cache_key("toy", "float32", "", [str(item)]) for item in range(count)]
    return merge([store.remember(Evidence, "toy", key, partial(compute, item)) for item, key in enumerate(keys)])
