"""Two stores that are no folder: one in memory, and one that never computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rebinding.engines.tasks import Address
from rebinding.evidence.store import Content, Store


@dataclass(frozen=True)
class Memory(Store):
    """Shards that are kept as long as their process: those of a worker, until they are on their way to the driver."""

    root: Path = Path()
    kept: dict[Address, object] = field(default_factory=dict)

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        return isinstance(self.kept.get((experiment, key)), kind)

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        found = self.kept.get((experiment, key))
        return found if isinstance(found, kind) else None

    def put(self, experiment: str, key: str, content: Content) -> None:
        self.kept[experiment, key] = content

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        found = self.get(kind, experiment, key)
        if found is None:
            found = compute()
            self.put(experiment, key, found)
        return found


class Absent(Exception):
    """A shard that is not in the store, with its address."""

    def __init__(self, address: Address) -> None:
        super().__init__("/".join(address))
        self.address = address


@dataclass(frozen=True)
class Lending(Store):
    """The driver's store, as its benches see it: what is there is lent, what is not is said, and nothing is computed.

    `spare` holds what could not be written, on a full disk; or everything, where no evidence is to be kept.
    """

    behind: Store | None = None
    spare: Memory = field(default_factory=Memory)

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        """Asked before something is computed, so what is not there is an `Absent`, as in `remember`."""
        there = self.spare.holds(kind, experiment, key) or (
            self.behind is not None and self.behind.holds(kind, experiment, key)
        )
        if not there:
            raise Absent((experiment, key))
        return True

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        found = self.spare.get(kind, experiment, key)
        return found if found is not None or self.behind is None else self.behind.get(kind, experiment, key)

    def put(self, experiment: str, key: str, content: Content) -> None:
        """As `Store.remember` keeps what was computed, and with its warning where that cannot be."""
        if self.behind is None:
            self.spare.put(experiment, key, content)
        else:
            kept = self.behind.remember(type(content), experiment, key, lambda: content)
            if not self.behind.holds(type(content), experiment, key):
                self.spare.put(experiment, key, kept)

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        found = self.get(kind, experiment, key)
        if found is None:
            raise Absent((experiment, key))
        return found
