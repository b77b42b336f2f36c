"""The engine that a command line asks for, the same for `pytest claims` and `rebinding discover`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rebinding.engines.distributed import DistributedEngine
from rebinding.engines.on_ray import EngineError, RayWorkerPool
from rebinding.study.engine import Engine

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Choice:
    """The options as given; None for those that were not."""

    engine: str = "here"
    address: str | None = None
    per_model: float | None = None
    workers: int | None = None

    def create(self) -> Engine:
        """The engine. Its workers start with the first task."""
        if self.engine == "here":
            ray_options = {"--address": self.address, "--gpus-per-model": self.per_model, "--workers": self.workers}
            for name, value in ray_options.items():
                if value is not None:
                    raise EngineError(f"{name} {value}: without --engine ray there are no workers; add --engine ray")
            return Engine()
        if self.workers is not None and self.workers < 1:
            raise EngineError(f"--workers {self.workers}: at least one worker is needed; give 1 or more")
        if self.per_model is not None and self.per_model < 0:
            raise EngineError(f"--gpus-per-model {self.per_model:g}: give 0 (on the CPU), or more")
        return DistributedEngine(self._pool_factory())

    def _pool_factory(self) -> Callable[[], RayWorkerPool]:
        """A function that starts workers on Ray; raises at once if Ray is not installed."""
        try:
            import ray
        except ImportError:
            raise EngineError(
                '--engine ray needs the package ray, which is not installed: pip install -e ".[ray]"'
            ) from None
        threads = int(os.environ[THREADS]) if os.environ.get(THREADS, "").isdecimal() else None
        return partial(
            RayWorkerPool, ray, address=self.address, workers=self.workers, per_model=self.per_model, threads=threads
        )
