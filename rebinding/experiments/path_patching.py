"""The core of path patching: what the paper's stages (`paths`) and position-free discovery (`search`) share.

A *sender* is a head at a token of a prompt, one in each row of a batch. Path patching takes two runs of clean prompts:

1. *sender run*: the sender's z is that of the noise prompt, every other head's z is frozen (or, in stages, recomputed),
   MLPs and norms are recomputed. The inputs of the receivers (raw queries, keys or values) are read.
2. *receiver run*: a clean run with the edits that follow from these inputs, nothing frozen.

The two algorithms differ in the receiver. That of a stage is a head: a changed key acts on its queries at every token,
so its inputs are written. That of the search is a head at one token, so its z is computed
(`rebinding/surgery/receivers.py`) and written there (docs/decisions/path-patching-stages.md).

**MLPs** send their output, and receive at their own token: what an MLP puts out in the sender run is written in the
receiver run. With `frozen="mlps"` other MLPs are frozen like heads, so a path is a direct edge.

**Rows that cannot change anything are skipped**, exactly: a sender reaches inputs of larger depth than its own only
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
from rebinding.paper.circuit import MLP, Head, depth
from rebinding.surgery import Anatomy, Edit, Read, RecordedRun, Surgeon, TorchSurgeon, in_layer
from rebinding.surgery.layers import split_read
from rebinding.surgery.receivers import InputSite
from rebinding.surgery.sites import SurgeryError

Component: TypeAlias = Literal["q", "k", "v", "kv", "mlp"]
ReceiverSite: TypeAlias = InputSite | Literal["mlp_out"]
"""What is read of a receiver: a head's raw query, key or value; the output of an MLP, which follows from its input."""
SITES: Mapping[Component, tuple[ReceiverSite, ...]] = {
    "q": ("q",), "k": ("k",), "v": ("v",), "kv": ("k", "v"), "mlp": ("mlp_out",)
}  # fmt: skip
Frozen: TypeAlias = Literal["all", "none", "mlps"]
"""What keeps its clean output in a sender run: all other heads, nothing, or all other heads and MLPs."""
MESSAGES = 1 << 27
"""The most bytes of receivers' inputs in memory at once."""


@dataclass(frozen=True, eq=False)
class Senders:
    """Heads at tokens of prompts, one a row: four tensors (row,). `head` is `MLP` for the MLP of the layer."""

    layer: Tensor
    head: Tensor
    token: Tensor
    prompt: Tensor

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.head.numel())

    @property
    def depth(self) -> Tensor:
        """The depth of each sender (row,)."""
        return 2 * self.layer + (self.head == MLP)

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
    """The raw queries, keys or values of a layer's receivers, or the output of its MLP. `receivers` are query heads;
    `heads` are the same, or their KV heads, as the site counts heads. An MLP has neither."""

    site: ReceiverSite
    layer: int
    receivers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """The depth of the receivers."""
        return depth((self.layer, MLP if self.site == "mlp_out" else 0))

    def width(self, anatomy: Anatomy) -> int:
        """Numbers in a row."""
        parts = anatomy.parts[self.layer]
        return anatomy.width("mlp_out") if self.site == "mlp_out" else len(self.heads) * parts.head_dim

    def read(self, at: Tensor) -> Read:
        """Read the input at one token a row, `at` (row,)."""
        if self.site == "mlp_out":
            return Read("mlp_out", at[:, None], layer=self.layer)
        heads = in_layer(self.layer, self.heads)
        return Read(self.site, at[:, None], heads, scope=None if self.site == "q" else "group")


def receiver_inputs(
    anatomy: Anatomy, receivers: Collection[Head], sites: Sequence[ReceiverSite]
) -> list[ReceiverInput]:
    """The inputs of some receivers at some sites, layer by layer; of MLPs only `mlp_out`, of heads only the others."""
    inputs = []
    for layer in sorted({layer for layer, _ in receivers}):
        heads = tuple(sorted({head for at, head in receivers if at == layer and head != MLP}))
        kv_heads = tuple(sorted({anatomy.parts[layer].kv_head(head) for head in heads}))
        of_heads = [site for site in sites if site != "mlp_out"] if heads else []
        inputs += [ReceiverInput(site, layer, heads, heads if site == "q" else kv_heads) for site in of_heads]
        inputs += [ReceiverInput("mlp_out", layer)] * ("mlp_out" in sites and (layer, MLP) in receivers)
    return inputs


def inputs_above(inputs: Sequence[ReceiverInput], lowest: int) -> list[ReceiverInput]:
    """The inputs that senders of a depth, `lowest`, and larger ones can change."""
    return [entry for entry in inputs if entry.depth > lowest]


@dataclass(frozen=True, eq=False)
class RecordedPrompts(ABC):
    """Clean prompts with their recording, and outputs of heads and MLPs in their noise prompts.

    `noise_z[layer]` is (prompt, head, token, head_dim) at the clean prompt's tokens, for layers with heads, and
    `noise_mlp[layer]` (prompt, token, width), for layers whose MLPs may send. They have one token if all senders of a
    prompt are at one token.
    """

    surgeon: Surgeon
    recording: RecordedRun
    noise_z: Mapping[int, Tensor]
    noise_mlp: Mapping[int, Tensor]

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
        width = sum(entry.width(self.anatomy) for entry in inputs)
        size = width * rows * next(iter(self.noise_z.values())).element_size()
        return blocks(senders, max(1, MESSAGES // size))

    def send(self, senders: Senders, reads: Sequence[Read], *, frozen: Frozen = "all") -> list[Tensor]:
        """The sender run: what is read in rows in which one sender each has its output in the noise prompt."""
        if frozen == "mlps":
            return self._send_directly(senders, reads)
        edits = [edit for layer in senders.layer.unique().tolist() for edit in self._noise_edits(senders, layer)]
        attention: Literal["frozen", "live"] = "live" if frozen == "none" else "frozen"
        return self.surgeon.run(
            self.recording, edits, reads, source=senders.prompt, attention=attention, allow_noop=True
        )

    def send_to_logits(self, senders: Senders, *, frozen: Frozen = "all") -> Tensor:
        """The score (row, ...) in the sender run itself: the receivers are the logits."""
        (after,) = self.send(senders, [self.read(senders.prompt)], frozen=frozen)
        return after[:, 0]

    def _send_directly(self, senders: Senders, reads: Sequence[Read]) -> list[Tensor]:
        """The sender run with heads and MLPs frozen. Between sender and receiver nothing changes, so what the sender
        writes is added to the receiver's residual stream and the receiver's layer alone is run."""
        change, values = self._changes_of_stream(senders), dict[int, Tensor]()
        layers = [self._layer_of(read) for read in reads]
        for layer in dict.fromkeys(layers):
            rows = torch.nonzero(senders.layer < layer).reshape(-1)
            of_layer = [number for number, own in enumerate(layers) if own == layer]
            heads = torch.nonzero((senders.layer == layer) & (senders.head != MLP)).reshape(-1)
            edits = self._noise_edits(senders, layer, heads)
            if rows.numel():
                value, at = change[rows.to(change.device)][:, None], senders.token[rows][:, None]  # (row, 1, hidden)
                edits.append(Edit("resid", value, at=at, layer=layer, rows=rows, mode="add"))
            own_reads = [reads[number] for number in of_layer]
            output = self.surgeon.run(
                self.recording, edits, own_reads, source=senders.prompt, attention="frozen", allow_noop=True
            )
            values |= dict(zip(of_layer, output, strict=True))
        return [values[number] for number in range(len(reads))]

    def _layer_of(self, read: Read) -> int:
        """The layer that computes what is read of one layer; keys and values may be those of a lower one."""
        (part,) = split_read(self.anatomy, read, self.recording.length)
        return self.anatomy.parts[part.layer].key_layer if read.site in ("k", "v") else part.layer

    def _changes_of_stream(self, senders: Senders) -> Tensor:
        """The change of what each sender adds to the residual stream at its token: (row, hidden)."""
        if not isinstance(self.surgeon, TorchSurgeon):
            raise SurgeryError("direct edges need a model on this machine; leave MLPs unfrozen")
        resid = self.recording.sites["resid"][0]
        changes = resid.new_zeros(senders.n, self.anatomy.hidden)
        for layer in senders.layer.unique().tolist():
            for edit in self._noise_edits(senders, layer):
                rows, clean = torch.as_tensor(edit.rows), self.recording.sites[edit.site][layer]
                own = senders.take(rows)
                if edit.site == "mlp_out":
                    before, after = clean[own.prompt, own.token], edit.value[:, 0]  # (row, width) each
                else:
                    before = clean[own.prompt, :, own.token]  # (row, head, head_dim)
                    after = before.clone()
                    after[torch.arange(own.n), own.head] = edit.value[:, 0, 0]
                writes = [self.surgeon.write(layer, edit.site, output) for output in (before, after)]
                changes[rows.to(changes.device)] = (writes[1] - writes[0]).to(changes)
        return changes

    def _noise_edits(self, senders: Senders, layer: int, of: Tensor | None = None) -> list[Edit]:
        """Give the senders of a layer (or the rows `of`) their outputs in the noise prompt."""
        of = torch.nonzero(senders.layer == layer).reshape(-1) if of is None else of
        is_mlp, edits = senders.head[of] == MLP, []
        for rows, noise in ((of[~is_mlp], self.noise_z), (of[is_mlp], self.noise_mlp)):
            if not rows.numel():
                continue
            own, values = senders.take(rows), noise[layer]
            place, at = own.token if values.shape[-2] > 1 else torch.zeros_like(own.token), own.token[:, None]
            if noise is self.noise_mlp:
                edits.append(Edit("mlp_out", values[own.prompt, place][:, None], at=at, layer=layer, rows=rows))
            else:
                value = values[own.prompt, own.head, place][:, None, None]  # (row, 1, 1, head_dim)
                edits.append(Edit("z", value, at=at, head=in_layer(layer, own.head[:, None]), rows=rows))
        return edits

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
