"""Work in blocks: shown with the remaining time, interrupted at any moment, and taken up where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tqdm import tqdm

from rebinding.evidence import Evidence, merge
from rebinding.evidence.store import Shelf

Item = TypeVar("Item")
Tick: TypeAlias = Callable[[int], object]
"""Called with the amount of work just done."""


def in_blocks(
    items: Sequence[Item],
    compute: Callable[[Sequence[Item], Tick], Evidence],
    *,
    experiment: str,
    size: int,
    cost: Callable[[Item], int],
    content: Callable[[Item], Any],
    shelf: Shelf | None = None,
    progress: bool | None = None,
) -> Evidence:
    """Compute evidence on `items`, `size` at a time, and merge it.

    With a shelf every block is kept under the hash of its items' `content` as soon as it is done, and a block that is
    there is not computed: an interrupted run loses the block it was in and nothing else. `cost` is the work of an item
    in any unit, the same in which `compute` ticks, so that the remaining time is that of what is left. `progress=None`
    shows the bar on a terminal only; where every block is there, there is none.
    """
    if size < 1:
        raise ValueError(f"a block of {size} items; at least one")
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    keys = [None if shelf is None else shelf.key([content(item) for item in part]) for part in parts]
    work = [sum(map(cost, part)) for part in parts]
    done = [shelf is not None and key is not None and shelf.store.holds(Evidence, experiment, key) for key in keys]
    before = sum(amount for amount, there in zip(work, done, strict=True) if there)
    hide = True if all(done) else None if progress is None else not progress
    with tqdm(total=sum(work), initial=before, desc=experiment, disable=hide, unit_scale=True, unit="") as bar:
        shards = []
        for part, key in zip(parts, keys, strict=True):
            if shelf is None or key is None:
                shards.append(compute(part, bar.update))
            else:
                shards.append(shelf.store.remember(Evidence, experiment, key, partial(compute, part, bar.update)))
    return merge(shards)
