"""The workbench: a loaded model with its prompts, whose evidence comes from the store or is computed and stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import takewhile
from typing import Any, TypeAlias, TypeVar

from torch import Tensor
from tqdm import tqdm

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.activations import Activations
from rebinding.evidence.request import describe, join, part_of
from rebinding.evidence.store import Content, Shelf
from rebinding.experiments.prompts import Prompts
from rebinding.models import LoadedModel
from rebinding.surgery import Surgeon

REMEMBERED = 1 << 30
"""Bytes of recordings to keep: many claims use the same prompts."""
Measure: TypeAlias = Callable[["Workbench", Any], Evidence]
Tensors: TypeAlias = Callable[["Workbench", Any], Mapping[str, Tensor]]
MEASURES: dict[type[Request], Measure] = {}
TENSORS: dict[type[Request], Tensors] = {}
Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")


def measures(kind: type[Request]) -> Callable[[Function], Function]:
    """Register the function that computes the evidence of a kind of request, from a workbench and the request alone."""

    def register(function: Function) -> Function:
        MEASURES[kind] = function
        return function

    return register


def averages(kind: type[Request]) -> Callable[[Function], Function]:
    """Register the function that computes tensors that several experiments need."""

    def register(function: Function) -> Function:
        TENSORS[kind] = function
        return function

    return register


def measure_of(kind: type[Request]) -> Measure:
    """The function that computes the evidence of a kind of request."""
    _import_measures(kind)
    return MEASURES[kind]


def tensors_of(kind: type[Request]) -> Tensors | None:
    """The function that computes tensors; None for a kind of request whose evidence is rows."""
    _import_measures(kind)
    return TENSORS.get(kind)


def function_of(kind: type[Request]) -> Measure | Tensors:
    """The function that computes what a kind of request asks for: rows, or tensors."""
    return tensors_of(kind) or measure_of(kind)


def tensor_requests(value: Any) -> Iterator[Request]:
    """The requests for tensors inside a request."""
    if isinstance(value, Request) and tensors_of(type(value)):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensor_requests(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from tensor_requests(part)


def _import_measures(kind: type[Request]) -> None:
    """Import the module `measure` of the package whose module `request` defines the kind."""
    folder, _, module = kind.__module__.rpartition(".")
    if module == "request" and kind not in MEASURES and kind not in TENSORS:
        import_module(f"{folder}.measure")


class Workbench:
    """An evidence source: a model with its prompts, and a shelf of the store if evidence is stored."""

    def __init__(
        self,
        loaded_model: LoadedModel,
        shelf: Shelf | None = None,
        *,
        prompts: Prompts | None = None,
        skip_prompts: int = 0,
    ) -> None:
        self.loaded_model = loaded_model
        self.shelf = shelf
        self.prompts = prompts or Prompts(loaded_model.encoder(), skip_prompts=skip_prompts)
        self._memory: dict[Hashable, Any] = {}
        self._shelves: dict[str, Shelf] = {}

    @cached_property
    def surgeon(self) -> Surgeon:
        return self.loaded_model.surgeon(remember=REMEMBERED)

    def get(self, request: Request) -> Evidence:
        """The evidence of a request, block by block; finished blocks come from the store."""
        blocks, measured = self.prompts.blocks(request), dict[str, Evidence]()
        evidence = []
        for number, block in enumerate(self._with_progress(request, blocks)):
            compute = partial(self._take_or_measure, request, blocks, number, measured)
            evidence.append(self._remember(Evidence, block, measure_of(type(block)), compute))
        return join(request, evidence)

    def prompts_at_once(self, request: OnPrompts) -> int:
        """How many prompts of a request are measured together: a block, or several where these fit on the device."""
        first, *_ = self.prompts.encode(request.prompts).prompts
        at_once = self.surgeon.prompts_at_once(len(first))
        if request.block is None:
            return at_once
        return request.block * (1 if request.block_is_large else max(1, at_once // request.block))

    def _take_or_measure(
        self, request: Request, blocks: list[Request], number: int, measured: dict[str, Evidence]
    ) -> Evidence:
        """Take a block from `measured`; if it is not there, measure it, and the next ones that are missing and fit."""
        block = blocks[number]
        if block.key not in measured:
            if not isinstance(request, OnPrompts) or request.block is None:
                return self._measure(block)
            end = number + self.prompts_at_once(request) // request.block
            missing = takewhile(lambda later: not self.holds(Evidence, later), blocks[number + 1 : end])
            group = [later for later in (block, *missing) if isinstance(later, OnPrompts)]
            if len(group) == 1:
                return self._measure(block)
            begin = number * request.block
            together = self._measure(self.prompts.part(request, begin, begin + sum(later.n for later in group)))
            measured |= {later.key: part_of(together, later) for later in group}
        return measured.pop(block.key)

    def _measure(self, request: Request) -> Evidence:
        """Compute evidence, whatever the store has."""
        return describe(request, measure_of(type(request))(self, request))

    def get_block(self, block: Request) -> Evidence:
        """The evidence of one block, in the form in which the store keeps it."""
        return self._remember(Evidence, block, measure_of(type(block)), lambda: self._measure(block))

    def tensors(self, request: Request) -> Mapping[str, Tensor]:
        """Tensors that several experiments share; computed once."""
        compute = tensors_of(type(request))
        assert compute is not None, f"{request.KIND.name} has rows and no tensors"
        return self.get_or_compute(
            request, lambda: self._remember(Activations, request, compute, lambda: Activations(compute(self, request)))
        ).tensors

    def get_or_compute(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """A value that several measurements share: made on first use and kept with the model."""
        if key not in self._memory:
            self._memory[key] = compute()
        value: Value = self._memory[key]
        return value

    def forget(self, key: Hashable) -> None:
        """Drop a shared value, so that its next use makes it again."""
        self._memory.pop(key, None)

    def address(self, request: Request) -> tuple[str, str]:
        """The kind and the key under which the store has the evidence, or the tensors, of a request."""
        function = function_of(type(request))
        return request.KIND.name, self._shelf(function).key(request.key)

    def holds(self, kind: type[Content], request: Request) -> bool:
        """Whether the store has the evidence, or the tensors, of a request."""
        return self.shelf is not None and self.shelf.store.holds(kind, *self.address(request))

    def _remember(
        self, kind: type[Content], request: Request, function: Callable[..., Any], compute: Callable[[], Content]
    ) -> Content:
        if self.shelf is None:
            return compute()
        return self.shelf.store.remember(kind, *self.address(request), compute)

    def _shelf(self, function: Callable[..., Any]) -> Shelf:
        """The shelf for results of a function; its code and that of the surgeon are part of the address."""
        assert self.shelf is not None
        name = function.__module__
        if name not in self._shelves:
            self._shelves[name] = self.shelf.of(name, type(self.surgeon).__module__, settings={})
        return self._shelves[name]

    def _with_progress(self, request: Request, blocks: list[Request]) -> Iterator[Request]:
        """Blocks with a progress bar on a terminal. Stored blocks count as done from the start, so the remaining time
        is that of the blocks to compute; if every block is stored, there is no bar."""
        is_stored = [len(blocks) == 1 or self.holds(Evidence, block) for block in blocks]
        done, hide = sum(is_stored), True if all(is_stored) else None
        name = request.KIND.name
        with tqdm(total=len(blocks), initial=done, desc=name, unit="block", disable=hide, leave=False) as bar:
            for block, stored in zip(blocks, is_stored, strict=True):
                yield block
                bar.update(not stored)
