"""Path patching of one stage: senders at a role, receivers that are heads of the next group, in a block of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rebinding.experiments.path_patching import (
    SITES,
    Component,
    ReceiverInput,
    RecordedPrompts,
    Senders,
    inputs_above,
    receiver_inputs,
    senders_at,
)
from rebinding.experiments.tokens import answer_of, relative_change
from rebinding.paper.circuit import Head
from rebinding.surgery import Edit, Read
from rebinding.surgery.anatomy import LayerParts
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.sites import Scope


@dataclass(frozen=True, eq=False)
class Block(RecordedPrompts):
    """Prompts of one stage, with the noise prompts' z at the sender role, and the positions of roles.

    `sender_at`, `receiver_at` and `readout` are (prompt,). The score is logit, probability and lead of the answer.
    """

    labels: Tensor
    rivals: Tensor
    sender_at: Tensor
    receiver_at: Tensor | None
    readout: Tensor

    def read(self, source: Tensor) -> Read:
        take = answer_of(self.labels[source], self.rivals[source])
        return Read("logits", positions=self.readout[source][:, None], reduce=take)

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


def sender_run(block: Block, heads: Sequence[Head], *, frozen: bool) -> Tensor:
    """The score after each sender's z is replaced: (sender, prompt, 3)."""
    after = block.send_to_logits(senders_at(heads, block.sender_at), frozen=frozen)
    return after.reshape(len(heads), block.n, -1)


def receiver_run(
    block: Block, heads: Sequence[Head], component: Component, receivers: Sequence[Head], *, frozen: bool, scope: Scope
) -> Tensor:
    """The score (sender, prompt, 3) after each sender's effect on the receivers' inputs is written into a clean run.

    Only heads below the last receiver can send, and only rows in which the input of some receiver changed are run.
    """
    last = max(layer for layer, _ in receivers)
    after = block.before.expand(len(heads), -1, -1).clone()  # (sender, prompt, 3)
    inputs = receiver_inputs(block.anatomy, receivers, SITES[component])
    for part in block.batches(sum(layer < last for layer, _ in heads), inputs, rows=block.n):
        senders = senders_at(heads[part], block.sender_at)
        edits = _receiver_edits(block, inputs_above(inputs, heads[part][0][0]), senders, frozen=frozen, scope=scope)
        after[part] = block.receive(edits, senders.prompt).view(after[part].shape)
    return after


def _receiver_edits(
    block: Block, inputs: Sequence[ReceiverInput], senders: Senders, *, frozen: bool, scope: Scope
) -> list[Edit]:
    """For every sender, the edits that write its effect on the receivers' inputs, if it changed them."""
    assert block.receiver_at is not None, "a stage with receivers says where they read"
    clean_reads = [entry.read(block.receiver_at) for entry in inputs]
    at, recording = block.receiver_at[senders.prompt], block.surgeon.with_reads(block.recording, clean_reads)
    clean = block.surgeon.run(recording, [], clean_reads)
    patched = replace(block, recording=recording).send(senders, [entry.read(at) for entry in inputs], frozen=frozen)
    flags = [
        (after != before[senders.prompt.to(before.device)]).flatten(1).any(dim=1)
        for before, after in zip(clean, patched, strict=True)
    ]
    edits = []
    for entry, after, flag in zip(inputs, patched, to_cpu_together(flags), strict=True):
        rows = torch.nonzero(flag).reshape(-1)
        if rows.numel():
            values = after[rows.to(after.device)]
            edits.append(_write(entry, values, rows, at[rows][:, None], block.anatomy.parts[entry.layer], scope))
    return edits


def _write(entry: ReceiverInput, values: Tensor, rows: Tensor, at: Tensor, parts: LayerParts, scope: Scope) -> Edit:
    """Write `values` (row, head, 1, head_dim) into an input at positions `at`. Of keys and values only the receivers
    see what is written, or, with `scope="group"`, their whole KV groups."""
    if entry.site == "q":
        return Edit("q", entry.layer, values, positions=at, heads=entry.heads, rows=rows)
    heads = entry.heads
    if scope == "head":
        heads = entry.receivers
        values = values[:, [entry.heads.index(parts.kv_head(head)) for head in heads]]
    return Edit(entry.site, entry.layer, values, positions=at, heads=heads, rows=rows, scope=scope)
