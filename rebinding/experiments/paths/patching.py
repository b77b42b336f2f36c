"""The two runs of path patching, for a block of prompts with all senders in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from rebinding.experiments.tokens import answer_of, relative_change
from rebinding.paper.circuit import Head
from rebinding.surgery import Anatomy, Edit, Read, Recording, Site, Surgeon
from rebinding.surgery.anatomy import LayerParts
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.sites import Scope

Component: TypeAlias = Literal["q", "k", "v", "kv"]
MESSAGES = 1 << 27
"""The most bytes of sender outputs in memory at once."""


@dataclass(frozen=True, eq=False)
class Block:
    """Prompts of one stage: their recording, the noise prompts' z at the sender role, and the positions of roles.

    `noise_z[layer]` is (prompt, head, 1, head_dim); `sender_at`, `receiver_at` and `readout` are (prompt,).
    """

    surgeon: Surgeon
    recording: Recording
    noise_z: Mapping[int, Tensor]
    labels: Tensor
    rivals: Tensor
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

    def source(self, senders: Sequence[Head]) -> Tensor:
        """The prompt of each row; rows are ordered by sender, then prompt."""
        return torch.arange(self.n).repeat(len(senders))

    def all_heads(self) -> list[Head]:
        """Every head as a sender."""
        return list(self.anatomy.heads)

    def before(self) -> Tensor:
        """Logit, probability and lead of the answer, unedited: (prompt, 3)."""
        return self.surgeon.run(self.recording, [], [self.label_read(torch.arange(self.n))])[0][:, 0]

    def relative_change(self, senders: Sequence[Head]) -> Tensor:
        """The relative change from each sender's clean z to its noise z: (sender, prompt)."""
        layers, parts = sorted({layer for layer, _ in senders}), self.anatomy.parts
        at = self.sender_at[:, None]
        reads = [Read("z", layer, positions=at, heads=range(parts[layer].n_heads)) for layer in layers]
        clean = self.surgeon.run(self.recording, [], reads)  # (prompt, head, 1, head_dim) a layer
        changes = {
            layer: relative_change(self.noise_z[layer], own)[:, :, 0] for layer, own in zip(layers, clean, strict=True)
        }
        device = changes[layers[0]].device  # layers may be on several devices
        return torch.stack([changes[layer][:, head].to(device) for layer, head in senders])

    def label_read(self, source: Tensor) -> Read:
        """The answer's logit, probability and lead at the readout, for rows that continue these prompts."""
        take = answer_of(self.labels[source], self.rivals[source])
        return Read("logits", positions=self.readout[source][:, None], reduce=take)


def sender_run(block: Block, senders: Sequence[Head], *, frozen: bool) -> tuple[Tensor, Tensor]:
    """The answer before and after each sender's z is replaced: (prompt, 3), (sender, prompt, 3)."""
    (after,) = _send(block, senders, [block.label_read(block.source(senders))], frozen=frozen)
    return block.before(), after.reshape(len(senders), block.n, 3)


def _send(block: Block, senders: Sequence[Head], reads: list[Read], *, frozen: bool) -> list[Tensor]:
    """Replace the z of one sender in each row; rows are ordered by sender, then prompt, and senders by layer."""
    edits, n, start = [], block.n, 0
    for layer in sorted({layer for layer, _ in senders}):
        heads = torch.tensor([head for at, head in senders if at == layer])
        rows = len(heads) * n
        edits.append(
            Edit(
                "z",
                layer,
                block.noise_z[layer][:, heads].transpose(0, 1).reshape(rows, 1, 1, -1),  # (sender x prompt, 1, 1, dim)
                positions=block.sender_at.repeat(len(heads))[:, None],
                heads=heads.repeat_interleave(n)[:, None],
                rows=torch.arange(start, start + rows),
            )
        )
        start += rows
    attention: Literal["frozen", "live"] = "frozen" if frozen else "live"
    source = block.source(senders)
    return block.surgeon.run(block.recording, edits, reads, source=source, attention=attention, allow_noop=True)


@dataclass(frozen=True)
class Port:
    """The input of one layer's receivers for one component; `read_heads` are counted as the site counts heads.

    With `scope="head"` only the receivers see what is written; with `scope="group"` their whole KV groups do.
    """

    site: Site
    layer: int
    read_heads: tuple[int, ...]
    write_heads: tuple[int, ...]
    scope: Scope | None

    def write(self, values: Tensor, rows: Tensor, at: Tensor, parts: LayerParts) -> Edit:
        """Write `values` (row, read head, 1, head_dim) at positions `at`."""
        if self.scope == "head":
            values = values[:, [self.read_heads.index(parts.kv_head(head)) for head in self.write_heads]]
        return Edit(self.site, self.layer, values, positions=at, heads=self.write_heads, rows=rows, scope=self.scope)


def ports(component: Component, receivers: Sequence[Head], scope: Scope, anatomy: Anatomy) -> list[Port]:
    """The ports of some receivers (layer, head)."""
    result = []
    for layer in sorted({layer for layer, _ in receivers}):
        heads = tuple(sorted(head for at, head in receivers if at == layer))
        kv_heads = tuple(sorted({anatomy.parts[layer].kv_head(head) for head in heads}))
        if component == "q":
            result.append(Port("q", layer, heads, heads, None))
        else:
            write_heads = heads if scope == "head" else kv_heads
            sites: tuple[Site, ...] = ("k", "v") if component == "kv" else (component,)
            result.extend(Port(site, layer, kv_heads, write_heads, scope) for site in sites)
    return result


def receiver_run(
    block: Block,
    senders: Sequence[Head],
    component: Component,
    receivers: Sequence[Head],
    *,
    frozen: bool,
    scope: Scope,
) -> tuple[Tensor, Tensor]:
    """The answer before, and after each sender's effect on the receivers' inputs is written into a clean run.

    Only heads below the last receiver can send, and only rows in which the input of some receiver changed are run.
    """
    assert block.receiver_at is not None, "a stage with receivers says where they read"
    last = max(layer for layer, _ in receivers)
    before = block.before()
    after = before.expand(len(senders), -1, -1).clone()  # (sender, prompt, 3)
    inputs = ports(component, receivers, scope, block.anatomy)
    for part in _sender_parts(block, inputs, sum(layer < last for layer, _ in senders)):
        source = block.source(senders[part])
        rows, edits = _without_unedited_rows(_receiver_edits(block, inputs, senders[part], frozen=frozen))
        if edits:
            reads = [block.label_read(source[rows])]
            (patched,) = block.surgeon.run(block.recording, edits, reads, source=source[rows], allow_noop=True)
            after[part].view(-1, 3)[rows.to(after.device)] = patched[:, 0]
    return before, after


def _sender_parts(block: Block, inputs: list[Port], count: int) -> Iterator[slice]:
    """Parts of `count` senders whose outputs fit into `MESSAGES` bytes, so that memory does not grow with senders."""
    heads_read = sum(len(port.read_heads) for port in inputs)
    head_dim = max(parts.head_dim for parts in block.anatomy.parts)
    message = block.n * heads_read * head_dim * next(iter(block.noise_z.values())).element_size()
    size = max(1, MESSAGES // message)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _receiver_edits(block: Block, inputs: list[Port], senders: Sequence[Head], *, frozen: bool) -> list[Edit]:
    """For every sender, the edits that write its effect on the ports above it, if it changed them."""
    assert block.receiver_at is not None
    at, source = block.receiver_at, block.source(senders)
    inputs = [port for port in inputs if port.layer > senders[0][0]]
    clean_reads = [Read(port.site, port.layer, positions=at[:, None], heads=port.read_heads) for port in inputs]
    recording = block.surgeon.with_reads(block.recording, clean_reads)
    clean = block.surgeon.run(recording, [], clean_reads)
    reads = [Read(port.site, port.layer, positions=at[source][:, None], heads=port.read_heads) for port in inputs]
    patched = _send(replace(block, recording=recording), senders, reads, frozen=frozen)
    flags = [
        (after != before[source.to(before.device)]).flatten(1).any(dim=1)
        for before, after in zip(clean, patched, strict=True)
    ]
    edits = []
    for port, after, flag in zip(inputs, patched, to_cpu_together(flags), strict=True):
        rows = torch.nonzero(flag).reshape(-1)
        if rows.numel():
            values = after[rows.to(after.device)]
            edits.append(port.write(values, rows, at[source[rows]][:, None], block.anatomy.parts[port.layer]))
    return edits


def _without_unedited_rows(edits: list[Edit]) -> tuple[Tensor, list[Edit]]:
    """The rows that have an edit, and the edits with row numbers among these."""
    edit_rows = [edit.rows for edit in edits if edit.rows is not None]  # every edit here names its rows
    rows = torch.cat(edit_rows).unique() if edits else torch.empty(0, dtype=torch.long)
    renumbered = [
        Edit(
            edit.site,
            edit.layer,
            edit.value,
            positions=edit.positions,
            heads=edit.heads,
            rows=torch.searchsorted(rows, own),
            scope=edit.scope,
        )
        for edit, own in zip(edits, edit_rows, strict=True)
    ]
    return rows, renumbered
