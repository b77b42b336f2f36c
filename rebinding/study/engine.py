"""Who computes evidence that is not there yet: this process, or workers elsewhere (`rebinding.engines`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rebinding.evidence.request import EvidenceSource
from rebinding.evidence.store import Store
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load, origin
from rebinding.study.plants import load_remembered
from rebinding.task.chat import Form

Out = TypeVar("Out")


@dataclass(frozen=True, eq=False)
class Session:
    """A model with its prompts, and where its evidence comes from. `form` is the chat form of the model itself, where
    its prompts are drawn in another tokenizer's."""

    loaded_model: LoadedModel
    prompts: Prompts
    source: EvidenceSource
    form: Form | None = None


class Engine(Protocol):
    """What a run leaves to its engine.

    A *job* is whatever asks benches for evidence: the test of a claim, a discovery. It may be begun more than once, and
    the last time it ends; so it must not count on having been called once.
    """

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        """What is known of a model; where its weights are is the engine's affair."""
        ...

    def session(self, loaded_model: LoadedModel, store: Store | None, *, first: int = 0) -> Session:
        """The prompts and the evidence source of a subject of this engine; prompts begin `first` later than usual."""
        ...

    def finish(self, job: Callable[[], Out]) -> Out:
        """What a job gives, once it lacks nothing."""
        ...

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Compute what these jobs will ask for, independent things beside each other; what they give is thrown away."""
        ...

    def close(self) -> None:
        """Nothing more will be asked."""
        ...


class Here:
    """This process computes, whenever it is asked, and nothing beforehand."""

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        if origin(name).kind == "planted" and store is not None:
            return load_remembered(name, store, dtype=dtype, device=device)
        return load(name, dtype=dtype, device=device)

    def session(self, loaded_model: LoadedModel, store: Store | None, *, first: int = 0) -> Session:
        shelf = store.shelf(loaded_model=loaded_model.fingerprint, dtype=loaded_model.dtype) if store else None
        bench = Workbench(loaded_model, shelf, first=first)
        return Session(loaded_model, bench.prompts, bench)

    def finish(self, job: Callable[[], Out]) -> Out:
        return job()

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Nothing is computed before it is asked for."""

    def close(self) -> None:
        """There is nobody to let go."""
