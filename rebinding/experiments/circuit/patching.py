"""The two runs of path patching, for a block of prompts and all heads as senders at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rebinding.experiments.readout import logit_and_probability_of, moved
from rebinding.surgery import Anatomy, Edit, Read, Recording, Site, Surgeon
from rebinding.surgery.sites import Scope

Component: TypeAlias = Literal["q", "k", "v", "kv"]
MESSAGES = 1 << 27
"""Bytes of what senders say to receivers that are held at once."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some prompts in one stage: their recording, the noise prompts' z at the sender role, and where things stand.

    `noise_z[layer]` is (prompt, head, 1, head_dim); `sender_at`, `receiver_at` and `readout` are one position a prompt.
    """

    surgeon: Surgeon
    recording: Recording
    noise_z: list[Tensor]
    labels: Tensor
    sender_at: Tensor
    receiver_at: Tensor | None
    readout: Tensor

    @property
    def n(self) -> int:
        """Prompts in the block."""
        return int(self.labels.numel())

    @property
    def anatomy(self) -> Anatomy:
        """The model's parts."""
        return self.surgeon.anatomy

    def source(self, layers: range) -> Tensor:
        """The prompt of each row, for rows ordered layer, head, prompt."""
        return torch.arange(self.n).repeat(len(layers) * self.anatomy.n_heads)

    def before(self) -> Tensor:
        """Logit and probability of the answer, unedited: (prompt, 2)."""
        return self.surgeon.run(self.recording, [], [self.label_read(torch.arange(self.n))])[0][:, 0]

    def moved(self) -> Tensor:
        """How far every sender's z in the noise prompt is from its own: (layer, head, prompt)."""
        heads = range(self.anatomy.n_heads)
        reads = [
            Read("z", layer, positions=self.sender_at[:, None], heads=heads) for layer in range(self.anatomy.n_layers)
        ]
        clean = self.surgeon.run(self.recording, [], reads)  # (prompt, head, 1, head_dim) a layer
        found = [moved(noise, own)[:, :, 0].T for noise, own in zip(self.noise_z, clean, strict=True)]
        return torch.stack(found)

    def label_read(self, source: Tensor) -> Read:
        """The answer's logit and probability at the readout, for rows that continue these prompts."""
        take = logit_and_probability_of(self.labels[source])
        return Read("logits", positions=self.readout[source][:, None], take=take)


def sender_run(block: Block, *, frozen: bool) -> tuple[Tensor, Tensor]:
    """The answer before, and after each head's z was replaced: (prompt, 2), (layer, head, prompt, 2)."""
    layers = range(block.anatomy.n_layers)
    (after,) = _send(block, layers, [block.label_read(block.source(layers))], frozen=frozen)
    return block.before(), after.reshape(len(layers), block.anatomy.n_heads, block.n, 2)


def _send(block: Block, layers: range, reads: list[Read], *, frozen: bool) -> list[Tensor]:
    """Replace the z of one head a row, for every head of some layers; rows ordered layer, head, prompt."""
    heads, n = block.anatomy.n_heads, block.n
    edits = [
        Edit(
            "z",
            layer,
            block.noise_z[layer].transpose(0, 1).reshape(heads * n, 1, 1, -1),  # (head x prompt, 1, 1, head_dim)
            positions=block.sender_at.repeat(heads)[:, None],
            heads=torch.arange(heads).repeat_interleave(n)[:, None],
            rows=torch.arange(heads * n) + number * heads * n,
        )
        for number, layer in enumerate(layers)
    ]
    attention: Literal["frozen", "live"] = "frozen" if frozen else "live"
    source = block.source(layers)
    return block.surgeon.run(block.recording, edits, reads, source=source, attention=attention, allow_still=True)


@dataclass(frozen=True)
class Port:
    """Where the receivers of one layer take in one component; `read_heads` are counted as the site counts them.

    With `scope="head"` only the receivers themselves see what is written; with `scope="group"` their whole KV groups.
    """

    site: Site
    layer: int
    read_heads: tuple[int, ...]
    write_heads: tuple[int, ...]
    scope: Scope | None

    def write(self, values: Tensor, rows: Tensor, at: Tensor, group: int) -> Edit:
        """Write what was read (row, read head, 1, head_dim) at positions `at`."""
        if self.scope == "head":
            values = values[:, [self.read_heads.index(head // group) for head in self.write_heads]]
        return Edit(self.site, self.layer, values, positions=at, heads=self.write_heads, rows=rows, scope=self.scope)


def ports(component: Component, receivers: Sequence[tuple[int, int]], scope: Scope, group: int) -> list[Port]:
    """The ports of a set of receivers (layer, head)."""
    found = []
    for layer in sorted({layer for layer, _ in receivers}):
        heads = tuple(sorted(head for at, head in receivers if at == layer))
        shared = tuple(sorted({head // group for head in heads}))
        if component == "q":
            found.append(Port("q", layer, heads, heads, None))
        else:
            written = heads if scope == "head" else shared
            sites: tuple[Site, ...] = ("k", "v") if component == "kv" else (component,)
            found.extend(Port(site, layer, shared, written, scope) for site in sites)
    return found


def receiver_run(
    block: Block, component: Component, receivers: Sequence[tuple[int, int]], *, frozen: bool, scope: Scope
) -> tuple[Tensor, Tensor]:
    """The answer before, and after what each head sends to the receivers is written into a clean run.

    Only heads below the last receiver can send, and only rows in which some receiver's component moved are run.
    """
    assert block.receiver_at is not None, "a stage with receivers says where they read"
    last, heads = max(layer for layer, _ in receivers), block.anatomy.n_heads
    before = block.before()
    after = before.expand(block.anatomy.n_layers, heads, -1, -1).clone()  # (layer, head, prompt, 2)
    found = ports(component, receivers, scope, block.anatomy.group)
    for layers in _layers_at_once(block, found, last):
        source = block.source(layers)
        rows, edits = _only_touched(_deliver(block, found, layers, frozen=frozen))
        if edits:
            reads = [block.label_read(source[rows])]
            (moved,) = block.surgeon.run(block.recording, edits, reads, source=source[rows])
            after[layers.start : layers.stop].view(-1, 2)[rows.to(after.device)] = moved[:, 0]
    return before, after


def _layers_at_once(block: Block, found: list[Port], last: int) -> Iterator[range]:
    """Sender layers whose messages to the receivers fit into `MESSAGES` bytes: memory does not grow with senders."""
    heads_read = sum(len(port.read_heads) for port in found)
    layer = block.anatomy.n_heads * block.n * heads_read * block.anatomy.head_dim * block.noise_z[0].element_size()
    size = max(1, MESSAGES // layer)
    for start in range(0, last, size):
        yield range(start, min(start + size, last))


def _deliver(block: Block, found: list[Port], layers: range, *, frozen: bool) -> list[Edit]:
    """The edits that write what reached the ports above from every sender of some layers, where it moved anything."""
    assert block.receiver_at is not None
    at, source = block.receiver_at, block.source(layers)
    found = [port for port in found if port.layer > layers.start]
    clean_reads = [Read(port.site, port.layer, positions=at[:, None], heads=port.read_heads) for port in found]
    recording = block.surgeon.with_reads(block.recording, clean_reads)
    unmoved = block.surgeon.run(recording, [], clean_reads)
    reads = [Read(port.site, port.layer, positions=at[source][:, None], heads=port.read_heads) for port in found]
    moved = _send(replace(block, recording=recording), layers, reads, frozen=frozen)
    edits = []
    for port, before, after in zip(found, unmoved, moved, strict=True):
        rows = torch.nonzero((after != before[source.to(before.device)]).flatten(1).any(dim=1)).reshape(-1).cpu()
        if rows.numel():
            values = after[rows.to(after.device)]
            edits.append(port.write(values, rows, at[source[rows]][:, None], block.anatomy.group))
    return edits


def _only_touched(edits: list[Edit]) -> tuple[Tensor, list[Edit]]:
    """The rows that any edit touches, and the edits counted in those rows."""
    touched = [torch.empty(0, dtype=torch.long) if edit.rows is None else edit.rows for edit in edits]
    rows = torch.cat(touched).unique() if edits else torch.empty(0, dtype=torch.long)
    counted = [
        Edit(
            edit.site,
            edit.layer,
            edit.value,
            positions=edit.positions,
            heads=edit.heads,
            rows=torch.searchsorted(rows, named),
            scope=edit.scope,
        )
        for edit, named in zip(edits, touched, strict=True)
    ]
    return rows, counted
