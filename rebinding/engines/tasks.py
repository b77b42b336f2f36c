"""What is handed to a worker, and what comes back: plain data, the same for every kind of worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rebinding.evidence import Evidence, Request
from rebinding.evidence.activations import Activations
from rebinding.evidence.request import digest
from rebinding.models import ModelError
from rebinding.models.devices import Dtype
from rebinding.surgery import Anatomy
from rebinding.task.chat import Form

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Address: TypeAlias = tuple[str, str]
"""Experiment and key: where a shard belongs in a store."""
Content: TypeAlias = Evidence | Activations


@dataclass(frozen=True)
class Loading:
    """A model as a worker is to load it."""

    name: str
    dtype: str
    device: str


@dataclass(frozen=True)
class Describing:
    """What is to be known of a model without its weights."""

    loading: Loading

    @property
    def id(self) -> str:
        """What tells it from other tasks."""
        return digest(["describe", self.loading.name, self.loading.dtype, self.loading.device])


@dataclass(frozen=True)
class Computing:
    """The shard at `address`: evidence of a request, or of a block of it, or tensors that requests need.

    `module` has the function that computes it, which may be one of somebody's own. `given` are the addresses of tensors
    that go with the task, because they have been computed before.
    """

    loading: Loading
    request: Request
    module: str
    address: Address
    given: tuple[Address, ...] = ()

    @property
    def id(self) -> str:
        """Its address: who wants the same shard waits for the same task."""
        return "/".join(self.address)


Task: TypeAlias = Describing | Computing


@dataclass(frozen=True)
class Described:
    """A model as the driver knows it: everything but its weights."""

    tokenizer: PreTrainedTokenizerFast
    anatomy: Anatomy
    form: Form
    dtype: Dtype
    device: str
    fingerprint: str
    revision: str | None
    weights: str | None


@dataclass(frozen=True, eq=False)
class Shards:
    """Everything that a worker computed for a task: the shard that was asked for, and those it needed on the way."""

    found: dict[Address, Content]


@dataclass(frozen=True)
class Failure:
    """An error of the work itself, which would be the same on any worker; `told` is where it arose."""

    error: Exception
    told: str


Outcome: TypeAlias = Described | Shards | Failure


class LostWorker(ModelError):
    """A task whose worker died again and again."""


class Missing(Exception):
    """A job has come to where it needs the outcomes of these tasks, and cannot go on without."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        super().__init__(f"{len(tasks)} tasks are to be done first")
        self.tasks = tasks
