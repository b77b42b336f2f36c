"""Tasks and outcomes of workers: plain data, the same for every kind of worker."""

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
"""Experiment and key: the address of a shard in a store."""
Content: TypeAlias = Evidence | Activations


@dataclass(frozen=True)
class LoadOptions:
    """The model that a worker loads, with dtype and device."""

    name: str
    dtype: str
    device: str


@dataclass(frozen=True)
class DescribeTask:
    """The task to describe a model without its weights."""

    load_options: LoadOptions

    @property
    def id(self) -> str:
        """The key that distinguishes it from other tasks."""
        return digest(["describe", self.load_options.name, self.load_options.dtype, self.load_options.device])


@dataclass(frozen=True)
class ComputeTask:
    """The task to compute the shard at `address`: evidence of a request or of a block of it, or tensors for requests.

    `module` has the function that computes it, and may be outside this package. `inputs` are the addresses of tensors
    that were computed before and are sent with the task.
    """

    load_options: LoadOptions
    request: Request
    module: str
    address: Address
    inputs: tuple[Address, ...] = ()

    @property
    def id(self) -> str:
        """The address: jobs that need the same shard wait for the same task."""
        return "/".join(self.address)


Task: TypeAlias = DescribeTask | ComputeTask


@dataclass(frozen=True)
class ModelDescription:
    """The description of a model for the driver: everything except its weights."""

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
    """Everything that a worker computed for a task: the shard itself, and those it needed on the way."""

    contents: dict[Address, Content]


@dataclass(frozen=True)
class Failure:
    """An error of the computation, which would be the same on any worker, with its traceback."""

    error: Exception
    traceback: str


Outcome: TypeAlias = ModelDescription | Shards | Failure


class LostWorker(ModelError):
    """A task whose workers died one after the other."""


class MissingOutcomes(Exception):
    """A job needs the outcomes of these tasks to continue."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        super().__init__(f"{len(tasks)} tasks must be done first")
        self.tasks = tasks
