"""The core of path patching: what the paper's stages (`paths`) and position-free discovery (`search`) share.

A *sender* is a head at a token of a prompt, one in each row of a batch. Path patching takes two runs of clean prompts:

1. *sender run*: the sender's z is that of the noise prompt, every other head's z is frozen (or, in stages, recomputed),
   MLPs and norms are recomputed. The inputs of the receivers (raw queries, keys or values) are read.
2. *receiver run*: a clean run with the edits that follow from these inputs, nothing frozen.

The two algorithms differ in the receiver. That of a stage is a head: a changed key acts on its queries at every token,
so its inputs are written. That of the search is a head at one token, so its z is computed
(`rebinding/surgery/receivers.py`) and written there (docs/decisions/path-patching-stages.md).

**Rows that cannot change anything are skipped**, exactly: a sender reaches inputs of layers above its own only
(`inputs_above`), and a row without an edit in the receiver run is measured as before, without a run
(`RecordedPrompts.receive`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rebinding.experiments.tokens import blocks
from rebinding.paper.circuit import Head
from rebinding.surgery import Anatomy, Edit, Read, RecordedRun, Surgeon, in_layer
from rebinding.surgery.receivers import InputSite

Component: TypeAlias = Literal["q", "k", "v", "kv"]
SITES: Mapping[Component, tuple[InputSite, ...]] = {"q": ("q",), "k": ("k",), "v": ("v",), "kv": ("k", "v")}
MESSAGES = 1 << 27
"""The most bytes of receivers' inputs in memory at once."""


@dataclass(frozen=True, eq=False)
class Senders:
    """Heads at tokens of prompts, one a row: four tensors (row,)."""

    layer: Tensor
    head: Tensor
    token: Tensor
    prompt: Tensor

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.head.numel())

    def take(self, rows: Tensor | slice) -> Senders:
        """The senders of some rows."""
        return Senders(self.layer[rows], self.head[rows], self.token[rows], self.prompt[rows])


def senders_at(heads: Sequence[Head], token: Tensor) -> Senders:
    """Every head at one token of each prompt, `token` (prompt,); rows are ordered by head, then prompt."""
    n, copies = token.numel(), len(heads)
    layer, head = torch.tensor(heads).repeat_interleave(n, 0).unbind(1)
    return Senders(layer, head, token.repeat(copies), torch.arange(n).repeat(copies))


def join_senders(parts: Sequence[Senders]) -> Senders:
    """The rows of several batches, one after the other."""
    columns = zip(*((part.layer, part.head, part.token, part.prompt) for part in parts), strict=True)
    return Senders(*map(torch.cat, columns))


@dataclass(frozen=True)
class ReceiverInput:
    """The raw queries, keys or values of a layer's receivers. `receivers` are query heads; `heads` are the same, or
    their KV heads, as the site counts heads."""

    site: InputSite
    layer: int
    receivers: tuple[int, ...]
    heads: tuple[int, ...]

    def read(self, at: Tensor) -> Read:
        """Read the input at one token a row, `at` (row,)."""
        heads = in_layer(self.layer, self.heads)
        return Read(self.site, at[:, None], heads, scope=None if self.site == "q" else "group")


def receiver_inputs(anatomy: Anatomy, receivers: Collection[Head], sites: Sequence[InputSite]) -> list[ReceiverInput]:
    """The inputs of some receivers at some sites, layer by layer."""
    inputs = []
    for layer in sorted({layer for layer, _ in receivers}):
        heads = tuple(sorted({head for at, head in receivers if at == layer}))
        kv_heads = tuple(sorted({anatomy.parts[layer].kv_head(head) for head in heads}))
        inputs += [ReceiverInput(site, layer, heads, heads if site == "q" else kv_heads) for site in sites]
    return inputs


def inputs_above(inputs: Sequence[ReceiverInput], layer: int) -> list[ReceiverInput]:
    """The inputs that senders of a layer can change."""
    return [entry for entry in inputs if entry.layer > layer]


@dataclass(frozen=True, eq=False)
class RecordedPrompts(ABC):
    """Clean prompts with their recording, and z of their noise prompts.

    `noise_z[layer]` is (prompt, head, token, head_dim) at the clean prompt's tokens, for layers with heads. It has one
    token if all senders of a prompt are at one token.
    """

    surgeon: Surgeon
    recording: RecordedRun
    noise_z: Mapping[int, Tensor]

    @abstractmethod
    def read(self, source: Tensor) -> Read:
        """Read the score, at one position, of rows that continue the prompts `source`."""

    @property
    def n(self) -> int:
        """Prompts."""
        return self.recording.n_prompts

    @property
    def anatomy(self) -> Anatomy:
        """The model's parts."""
        return self.surgeon.anatomy

    @cached_property
    def before(self) -> Tensor:
        """The score of the clean prompts (prompt, ...)."""
        return self.surgeon.run(self.recording, [], [self.read(torch.arange(self.n))])[0][:, 0]

    def batches(self, senders: int, inputs: Sequence[ReceiverInput], *, rows: int = 1) -> Iterator[slice]:
        """Slices of some number of senders, of `rows` rows each, whose inputs fit into `MESSAGES` bytes: memory does
        not grow with the number of senders."""
        width = sum(len(entry.heads) * self.anatomy.parts[entry.layer].head_dim for entry in inputs)
        size = width * rows * next(iter(self.noise_z.values())).element_size()
        return blocks(senders, max(1, MESSAGES // size))

    def send(self, senders: Senders, reads: Sequence[Read], *, frozen: bool = True) -> list[Tensor]:
        """The sender run: what is read in rows in which one sender each has its z of the noise prompt."""
        edits = [self._noise_edit(senders, layer) for layer in senders.layer.unique().tolist()]
        attention: Literal["frozen", "live"] = "frozen" if frozen else "live"
        return self.surgeon.run(
            self.recording, edits, reads, source=senders.prompt, attention=attention, allow_noop=True
        )

    def send_to_logits(self, senders: Senders, *, frozen: bool = True) -> Tensor:
        """The score (row, ...) in the sender run itself: the receivers are the logits."""
        (after,) = self.send(senders, [self.read(senders.prompt)], frozen=frozen)
        return after[:, 0]

    def _noise_edit(self, senders: Senders, layer: int) -> Edit:
        """Give the senders of a layer their z from the noise prompt."""
        rows = torch.nonzero(senders.layer == layer).reshape(-1)
        own = senders.take(rows)
        noise_z = self.noise_z[layer].expand(-1, -1, self.recording.length, -1)
        value = noise_z[own.prompt, own.head, own.token][:, None, None]  # (row, 1, 1, head_dim)
        return Edit("z", value, at=own.token[:, None], head=in_layer(layer, own.head[:, None]), rows=rows)

    def receive(self, edits: Sequence[Edit], source: Tensor) -> Tensor:
        """The receiver run: the score (row, ...) of rows that continue the prompts `source`; each edit names its rows.
        Rows without an edit are not run."""
        after = self.before[source.to(self.before.device)]  # a copy
        edited = [torch.as_tensor(edit.rows) for edit in edits if edit.rows is not None]
        if edited:
            rows = torch.cat(edited).unique()
            own = [replace(edit, rows=torch.searchsorted(rows, at)) for edit, at in zip(edits, edited, strict=True)]
            reads = [self.read(source[rows])]
            (score,) = self.surgeon.run(self.recording, own, reads, source=source[rows], allow_noop=True)
            after[rows.to(after.device)] = score[:, 0]
        return after
