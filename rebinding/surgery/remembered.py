"""Recordings that are asked for again: the same prompts are the clean side of many experiments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TypeAlias

from torch import Tensor

from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import Site

Key: TypeAlias = tuple[tuple[int, ...], bytes, frozenset[str]]


class Recordings:
    """The recordings used last, as many as fit into `limit` bytes.

    A batch is found again only as a whole: in another batch the same prompt may be rounded differently. The model must
    not change meanwhile.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: OrderedDict[Key, Recording] = OrderedDict()

    def get(self, tokens: Tensor, keep: Collection[Site], make: Callable[[], Recording]) -> Recording:
        """The recording of these prompts with these sites kept, made if it is not there."""
        key = (tuple(tokens.shape), tokens.cpu().numpy().tobytes(), frozenset(keep))
        found = self.kept.pop(key, None)
        if found is None:
            found = make()
            size = found.bytes()
            while self.kept and size + self.bytes() > self.limit:
                self.kept.popitem(last=False)
            if size > self.limit:
                return found
        self.kept[key] = found
        return found

    def bytes(self) -> int:
        """Memory that the recordings take."""
        return sum(one.bytes() for one in self.kept.values())
