"""A worker: it loads a model, computes what it is told, and sends it home. It knows no store and no other worker.

This class does not know where it lives. On Ray an actor is made of it (`rebinding.engines.on_ray`).
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
from rebinding.engines.tasks import Address, Computing, Content, Described, Failure, Loading, Outcome, Shards, Task
from rebinding.evidence import Evidence
from rebinding.evidence.activations import Activations
from rebinding.evidence.store import shelf_of
from rebinding.experiments.workbench import Workbench, tensors_of
from rebinding.models import LoadedModel, load


@dataclass
class Worker:
    """One model at a time: the one that was asked for last."""

    loaded: Loading | None = None
    bench: Workbench | None = None
    kept: Memory = field(default_factory=Memory)

    def do(self, task: Task, given: Mapping[Address, Activations]) -> Outcome:
        """What comes of a task. An error of the work is an outcome too; that there is no memory left is not, since
        another process may have some."""
        try:
            bench = self._bench(task.loading)
            return self._compute(bench, task, given) if isinstance(task, Computing) else described(bench.loaded_model)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return Failure(error, traceback.format_exc())

    def _bench(self, loading: Loading) -> Workbench:
        """A bench with the model; the one before it is let go first."""
        if self.bench is None or self.loaded != loading:
            self.bench = self.loaded = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            loaded_model = load(loading.name, dtype=loading.dtype, device=loading.device)
            self.bench = Workbench(
                loaded_model, shelf_of(self.kept, loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype)
            )
            self.loaded = loading
        return self.bench

    def _compute(self, bench: Workbench, task: Computing, given: Mapping[Address, Activations]) -> Shards:
        importlib.import_module(task.module)  # a measure outside of the package registers itself there
        self.kept.kept.update(given)
        try:
            if tensors_of(type(task.request)):
                bench.forget(task.request)
                bench.tensors(task.request)
            else:
                bench.get(task.request)
            found: dict[Address, Content] = {
                address: content
                for address, content in self.kept.kept.items()
                if address not in given and isinstance(content, Evidence | Activations)
            }
        finally:
            self.kept.kept.clear()
        return Shards(found)


def described(loaded_model: LoadedModel) -> Described:
    """A subject without its weights."""
    assert loaded_model.dtype != "as served"
    return Described(
        loaded_model.tokenizer,
        loaded_model.anatomy,
        loaded_model.form,
        loaded_model.dtype,
        str(loaded_model.device),
        loaded_model.fingerprint,
        loaded_model.revision,
        loaded_model.weights,
    )


def packed(outcome: Outcome) -> bytes:
    """An outcome as it travels; of an error that cannot, the words do."""
    try:
        return pickle.dumps(outcome)
    except Exception:
        if not isinstance(outcome, Failure):
            raise
        return pickle.dumps(Failure(RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}"), outcome.told))
