"""A worker: it loads a model, computes the shards of tasks, and returns them. It knows no store and no other worker.

The class does not depend on where it runs. On Ray an actor wraps it (`rebinding.engines.on_ray`).
"""

from __future__ import annotations

import gc
import importlib
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from rebinding.engines.stores import Memory
from rebinding.engines.tasks import (
    Address,
    ComputeTask,
    Content,
    Failure,
    LoadOptions,
    ModelDescription,
    Outcome,
    Shards,
    Task,
)
from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import shelf_of
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load


@dataclass
class Worker:
    """A worker with one model at a time, that of its last task."""

    loaded_options: LoadOptions | None = None
    bench: Workbench | None = None
    memory: Memory = field(default_factory=Memory)

    def run_task(self, task: Task, inputs: Mapping[Address, Activations]) -> Outcome:
        """The outcome of a task. An error of the computation is an outcome too; a lack of memory is raised, since
        another process may have more."""
        try:
            bench = self._bench(task.load_options)
            return (
                self._compute(bench, task, inputs)
                if isinstance(task, ComputeTask)
                else describe_model(bench.loaded_model)
            )
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return Failure(error, traceback.format_exc())

    def _bench(self, load_options: LoadOptions) -> Workbench:
        """A workbench with the model; the previous model is freed first."""
        if self.bench is None or self.loaded_options != load_options:
            self.bench = self.loaded_options = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            loaded_model = load(load_options.name, dtype=load_options.dtype, device=load_options.device)
            self.bench = Workbench(
                loaded_model, shelf_of(self.memory, loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
            )
            self.loaded_options = load_options
        return self.bench

    def _compute(self, bench: Workbench, task: ComputeTask, inputs: Mapping[Address, Activations]) -> Shards:
        importlib.import_module(task.module)  # a measure outside the package registers itself on import
        self.memory.shards.update(inputs)
        try:
            if experiment_of(type(task.request)).makes == "tensors":
                bench.forget(task.request)
                bench.tensors(task.request)
            else:
                bench.get(task.request)
            shards: dict[Address, Content] = {
                address: content
                for address, content in self.memory.shards.items()
                if address not in inputs and isinstance(content, Evidence | Activations)
            }
        finally:
            self.memory.shards.clear()
        return Shards(shards)


def describe_model(loaded_model: LoadedModel) -> ModelDescription:
    """The description of a model, without its weights."""
    assert loaded_model.dtype != "as served", "a worker cannot describe a remote model"
    return ModelDescription(
        loaded_model.tokenizer,
        loaded_model.anatomy,
        loaded_model.form,
        loaded_model.dtype,
        str(loaded_model.device),
        loaded_model.fingerprint,
        loaded_model.revision,
        loaded_model.weights,
    )


def pack(outcome: Outcome) -> bytes:
    """Pickle an outcome. An error that cannot be pickled becomes a RuntimeError with its message."""
    try:
        return pickle.dumps(outcome)
    except Exception:
        if not isinstance(outcome, Failure):
            raise
        return pickle.dumps(
            Failure(RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}"), outcome.traceback)
        )
