"""The workbench: a loaded model with its prompts, whose evidence comes from the store or is computed and stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, TypeVar

from torch import Tensor
from tqdm import tqdm

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import describe, join, part_of
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Activations, Content, Shards, cache_key
from rebinding.experiments.prompts import Stories
from rebinding.experiments.table import experiment_of
from rebinding.models import LoadedModel
from rebinding.surgery import Surgeon

REMEMBERED = 1 << 30
"""Bytes of recordings to keep: many claims use the same prompts."""
Value = TypeVar("Value")


def tensor_requests(value: Any) -> Iterator[Request]:
    """The requests for tensors inside a request."""
    if isinstance(value, Request) and experiment_of(type(value)).makes == "tensors":
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensor_requests(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from tensor_requests(part)


class Workbench:
    """An evidence source: a model with its prompts, and a store if evidence is stored."""

    def __init__(
        self,
        loaded_model: LoadedModel,
        store: Shards | None = None,
        *,
        prompts: Stories | None = None,
        skip_prompts: int = 0,
    ) -> None:
        self.loaded_model = loaded_model
        self.store = store
        self.prompts = prompts or Stories(loaded_model.encoder(), skip_prompts=skip_prompts)
        self._memory: dict[Hashable, Any] = {}
        self._code: dict[str, str] = {}
        """The hash of the code that the results of a module depend on: its own, the surgeon's, and all they import."""

    @cached_property
    def surgeon(self) -> Surgeon:
        return self.loaded_model.surgeon(remember=REMEMBERED)

    def get(self, request: Request) -> Evidence:
        """The evidence of a request, block by block; finished blocks come from the store."""
        blocks, measured = self.prompts.blocks(request), dict[str, Evidence]()
        evidence = []
        for number, block in enumerate(self._with_progress(request, blocks)):
            compute = partial(self._take_or_measure, request, blocks, number, measured)
            evidence.append(self._remember(Evidence, block, compute))
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
        return describe(request, experiment_of(type(request)).evidence(self, request))

    def get_block(self, block: Request) -> Evidence:
        """The evidence of one block, in the form in which the store keeps it."""
        return self._remember(Evidence, block, lambda: self._measure(block))

    def tensors(self, request: Request) -> Mapping[str, Tensor]:
        """Tensors that several experiments share; computed once."""

        def compute() -> Activations:
            return Activations(experiment_of(type(request)).tensors(self, request))

        return self.get_or_compute(request, lambda: self._remember(Activations, request, compute)).tensors

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
        module, model = experiment_of(type(request)).run.__module__, self.loaded_model
        if module not in self._code:
            self._code[module] = code_hash(module, type(self.surgeon).__module__)
        return request.KIND.name, cache_key(model.fingerprint, model.dtype, self._code[module], request.key)

    def holds(self, kind: type[Content], request: Request) -> bool:
        """Whether the store has the evidence, or the tensors, of a request."""
        return self.store is not None and self.store.holds(kind, *self.address(request))

    def _remember(self, kind: type[Content], request: Request, compute: Callable[[], Content]) -> Content:
        if self.store is None:
            return compute()
        return self.store.remember(kind, *self.address(request), compute)

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
