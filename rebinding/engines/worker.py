"""A worker: it loads a model, computes the shards of tasks, and returns them. It knows no store and no other worker.

Tasks and outcomes are plain data, and the class does not depend on where it runs. On Ray an actor wraps it
(`rebinding.engines.on_ray`).
"""

from __future__ import annotations

import gc
import importlib
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn, TypeAlias

import torch

from rebinding.evidence import Evidence, Request
from rebinding.evidence.store import Activations, Content, Store
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, ModelError, load

Address: TypeAlias = tuple[str, str]
"""Experiment and key: the address of a shard in a store."""


@dataclass(frozen=True)
class LoadOptions:
    """The model that a worker loads, with dtype and device."""

    name: str
    dtype: str
    device: str


@dataclass(frozen=True)
class Task:
    """The task to compute the shard at `address`; without a request, to describe a model without its weights.

    The shard is evidence of the request, which may be a block of another one, or tensors for requests. `module` has the
    function that computes it, and may be outside this package. `inputs` are the addresses of tensors that were computed
    before and are sent with the task.
    """

    load_options: LoadOptions
    request: Request | None
    module: str
    address: Address
    inputs: tuple[Address, ...] = ()

    @property
    def id(self) -> str:
        """The address: jobs that need the same shard wait for the same task."""
        return "/".join(self.address)


ComputedShards: TypeAlias = dict[Address, Evidence | Activations]
"""Everything that a worker computed for a task: the shard itself, and those it needed on the way."""
TaskOutcome: TypeAlias = LoadedModel | ComputedShards | Exception
"""A model without its weights, shards, or an error of the computation, which would be the same on any worker."""


class Memory:
    """Shards in memory: those of a worker, until it has sent them to the driver.

    With a folder, only those that could not be written to it, on a full disk; the others are in the folder.
    """

    def __init__(self, folder: Store | None = None) -> None:
        self.folder = folder
        self.shards: dict[Address, object] = {}

    def holds(self, kind: type[Content], experiment: str, key: str) -> bool:
        is_here = isinstance(self.shards.get((experiment, key)), kind)
        return is_here or (self.folder is not None and self.folder.holds(kind, experiment, key))

    def get(self, kind: type[Content], experiment: str, key: str) -> Content | None:
        content = self.shards.get((experiment, key))
        if isinstance(content, kind):
            return content
        return self.folder.get(kind, experiment, key) if self.folder is not None else None

    def put(self, experiment: str, key: str, content: Content) -> None:
        """Store content as `Store.remember` does, with its warning where the folder cannot be written."""
        kind, stored = type(content), content
        if self.folder is not None:
            stored = self.folder.remember(kind, experiment, key, lambda: content)
        if self.folder is None or not self.folder.holds(kind, experiment, key):
            self.shards[experiment, key] = stored

    def remember(self, kind: type[Content], experiment: str, key: str, compute: Callable[[], Content]) -> Content:
        content = self.get(kind, experiment, key)
        if content is None:
            content = compute()
            self.put(experiment, key, content)
        return content


@dataclass
class Worker:
    """A worker with one model at a time, that of its last task."""

    loaded_options: LoadOptions | None = None
    bench: Workbench | None = None
    memory: Memory = field(default_factory=Memory)

    def run_task(self, task: Task, inputs: Mapping[Address, Activations]) -> TaskOutcome:
        """The outcome of a task. An error of the computation is an outcome too; a lack of memory is raised, since
        another process may have more."""
        try:
            bench = self._bench(task.load_options)
            if task.request is None:
                return without_weights(bench.loaded_model)
            importlib.import_module(task.module)  # a measure outside the package registers itself on import
            return self._compute(bench, task.request, inputs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            error.add_note(f"on a worker:\n{traceback.format_exc()}")
            return error

    def _bench(self, load_options: LoadOptions) -> Workbench:
        """A workbench with the model; the previous model is freed first."""
        if self.bench is None or self.loaded_options != load_options:
            self.bench = self.loaded_options = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            loaded_model = load(load_options.name, dtype=load_options.dtype, device=load_options.device)
            self.bench = Workbench(loaded_model, self.memory)
            self.loaded_options = load_options
        return self.bench

    def _compute(self, bench: Workbench, request: Request, inputs: Mapping[Address, Activations]) -> ComputedShards:
        self.memory.shards.update(inputs)
        try:
            if experiment_of(type(request)).makes == "tensors":
                bench.forget(request)
                bench.tensors(request)
            else:
                bench.get(request)
            return {
                address: content
                for address, content in self.memory.shards.items()
                if address not in inputs and isinstance(content, Evidence | Activations)
            }
        finally:
            self.memory.shards.clear()


def without_weights(loaded_model: LoadedModel) -> LoadedModel:
    """A model for the driver: everything except its weights, which stay on workers."""
    loader = partial(_no_weights, loaded_model.name)
    return replace(loaded_model, loader=loader, known_fingerprint=loaded_model.fingerprint)


def _no_weights(name: str) -> NoReturn:
    raise ModelError(f"{name} is loaded on workers only; the driver cannot run it. Run it with --engine here")


def pack(outcome: TaskOutcome) -> bytes:
    """Pickle an outcome. An error that cannot be pickled becomes a RuntimeError with its message and its notes."""
    try:
        return pickle.dumps(outcome)
    except Exception:
        if not isinstance(outcome, Exception):
            raise
        error = RuntimeError(f"{type(outcome).__name__}: {outcome}")
        error.__notes__ = getattr(outcome, "__notes__", [])
        return pickle.dumps(error)
