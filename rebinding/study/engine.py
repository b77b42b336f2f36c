"""Engines compute missing evidence: in this process, or on workers (`rebinding.engines`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from rebinding.evidence.request import EvidenceSource
from rebinding.evidence.store import Store
from rebinding.experiments.prompts import Stories
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load, origin
from rebinding.study.plants import load_remembered
from rebinding.task.chat import Form

Out = TypeVar("Out")


@dataclass(frozen=True, eq=False)
class Session:
    """A model with its prompts and its evidence source. `form` is the chat form of the model itself, where its prompts
    are encoded with another tokenizer."""

    loaded_model: LoadedModel
    prompts: Stories
    source: EvidenceSource
    form: Form | None = None


class Engine:
    """Computes the evidence of a run: each piece in this process, when it is requested. Others override this.

    A *job* is a function that requests evidence: the test of a claim, a discovery. It may be started several times and
    completes in the last call; so it must not rely on being called once.
    """

    is_local: ClassVar[bool] = True
    """Whether models run in this process."""

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        """A model by name; the engine decides where its weights are."""
        if origin(name).kind == "planted" and store is not None:
            return load_remembered(name, store, dtype=dtype, device=device)
        return load(name, dtype=dtype, device=device)

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        """The prompts and the evidence source of a model; the first `skip_prompts` prompts are skipped."""
        bench = Workbench(loaded_model, store, skip_prompts=skip_prompts)
        return Session(loaded_model, bench.prompts, bench)

    def finish(self, job: Callable[[], Out]) -> Out:
        """Run a job until no evidence is missing, and return its result."""
        return job()

    def prepare(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Compute the evidence that these jobs request, in parallel where possible; their results are discarded. Here
        evidence is computed on request, so no job begins."""

    def close(self) -> None:
        """Release what the engine holds; no request follows. Here it is nothing."""
