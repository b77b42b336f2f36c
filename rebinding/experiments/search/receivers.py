"""Receivers of the search: the outputs of senders at their tokens, and the change of z in each receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from rebinding.experiments.search.recorded_pairs import RecordedPairs, Senders
from rebinding.experiments.search.request import Settings
from rebinding.paper.graph import Node
from rebinding.surgery import Read
from rebinding.surgery.receivers import Component, ReceiverHead, receiver_head

COMPONENTS: tuple[Component, ...] = ("q", "k", "v")
MESSAGES = 1 << 27
"""The most bytes of sender outputs in memory at once."""
ROUNDED_AWAY = 0.1
"""Of a unit in the last place of the residual."""
SenderOutput: TypeAlias = dict[tuple[Component, int], Tensor]
"""The projections above the senders, at each sender's token: by component and layer (row, head, head_dim)."""


@dataclass(frozen=True, eq=False)
class RecordedReceiver:
    """A head at a token as recorded in the clean prompts: `at` is -1 in prompts without the token, `write` maps z to
    the residual stream, `size` is the norm of the residual stream there."""

    node: Node
    at: Tensor
    head: ReceiverHead
    write: Tensor
    size: Tensor

    def relative_change(self, change: Tensor, source: Tensor) -> Tensor:
        """The share of the residual stream that a change of z (row, head_dim) rewrites: (row,)."""
        written: Tensor = (change @ self.write.T).norm(dim=-1)
        return written / self.size[source]


@dataclass(frozen=True, eq=False)
class ReceiverChange:
    """The effect of senders on one receiver: the rows that it can attend to, and the change of its z there.

    `relative_change` is the share of the residual stream that is rewritten, `estimate` the effect on the score by its
    slope.
    """

    receiver: RecordedReceiver
    rows: Tensor
    change: Tensor
    relative_change: Tensor
    estimate: Tensor


def recorded_receiver(recorded_pairs: RecordedPairs, node: Node) -> RecordedReceiver:
    """A node as recorded in the clean prompts."""
    anatomy, recording, prompts = (
        recorded_pairs.surgeon.anatomy,
        recorded_pairs.recording,
        torch.arange(recorded_pairs.n),
    )
    at = recorded_pairs.pairs.at(node.token)
    place = at.clamp(min=0)
    layer = anatomy.layer_modules(recorded_pairs.surgeon.model)[node.layer]
    parts = anatomy.parts[node.layer]
    span = slice(node.head * parts.head_dim, (node.head + 1) * parts.head_dim)
    output = recording.sites["attention_output"][node.layer][prompts, place]  # (prompt, hidden)
    resid = recording.sites["resid"][node.layer][prompts, place]  # (prompt, hidden)
    shrink = anatomy.attention_write(layer, output).norm(dim=-1) / output.norm(dim=-1)  # (prompt,)
    projection = cast(nn.Linear, layer.get_submodule(parts.output))
    weight = projection.weight[:, span].detach()  # (hidden, head_dim)
    return RecordedReceiver(
        node,
        at,
        receiver_head(recorded_pairs.surgeon, recording, node.layer, node.head, place),
        weight,
        resid.norm(dim=-1) / shrink,
    )


def sender_tokens(recorded_pairs: RecordedPairs, receivers: Sequence[RecordedReceiver], settings: Settings) -> Tensor:
    """Where senders may be: up to the receivers, from the first token that differs; (prompt, token)."""
    token = torch.arange(recorded_pairs.pairs.length)
    last = torch.stack([receiver.at for receiver in receivers]).amax(0)  # (prompt,)
    allowed = (token[None] >= recorded_pairs.pairs.first[:, None]) & (token[None] <= last[:, None])
    if settings.min_attention:
        is_attended = torch.stack(  # (receiver, prompt, token)
            [
                (receiver.head.pattern.cpu() >= settings.min_attention) & (receiver.at >= 0)[:, None]
                for receiver in receivers
            ]
        )
        is_own = torch.stack([token[None] == receiver.at[:, None] for receiver in receivers])  # as above
        allowed &= (is_attended | is_own).flatten(0, 1).any(0)  # by place: in any prompt
    return allowed


def sender_batches(
    recorded_pairs: RecordedPairs, senders: Senders, receivers: Sequence[RecordedReceiver]
) -> Iterator[Senders]:
    """Batches of senders whose outputs fit into `MESSAGES` bytes."""
    anatomy = recorded_pairs.surgeon.anatomy
    layers = {receiver.node.layer for receiver in receivers}
    widths = (anatomy.parts[layer].n_heads * anatomy.parts[layer].head_dim for layer in layers)
    row = 3 * sum(widths) * recorded_pairs.recording.sites["resid"][0].element_size()
    size = max(1, MESSAGES // row)
    for start in range(0, senders.n, size):
        yield senders.take(torch.arange(start, min(start + size, senders.n)))


def sender_output(
    recorded_pairs: RecordedPairs, senders: Senders, receivers: Sequence[RecordedReceiver]
) -> SenderOutput:
    """Run the senders with the z and attention of every other head frozen, and read the projections above.

    Returns them at each sender's token, by component and layer: (row, head, head_dim).
    """
    anatomy = recorded_pairs.surgeon.anatomy
    keys, reads = [], []
    for layer in sorted({receiver.node.layer for receiver in receivers}):
        heads = sorted({receiver.node.head for receiver in receivers if receiver.node.layer == layer})
        for site in COMPONENTS:
            parts = anatomy.parts[layer]
            read_heads = heads if site == "q" else sorted({parts.kv_head(head) for head in heads})
            reads.append(Read(site, layer, positions=senders.token[:, None], heads=read_heads))
            keys.append((site, layer))
    edits = [senders.noise_edit(recorded_pairs.noise_z)]
    values = recorded_pairs.surgeon.run(
        recorded_pairs.recording, edits, reads, source=senders.prompt, attention="frozen", allow_noop=True
    )
    n_heads = anatomy.n_heads
    output: SenderOutput = {}
    for (site, layer), read, value in zip(keys, reads, values, strict=True):
        assert read.heads is not None
        all_heads = value.new_zeros(senders.n, n_heads, value.shape[-1])  # (row, head, head_dim)
        all_heads[:, read.heads[0]] = value[:, :, 0]
        output[site, layer] = all_heads
    return output


def receiver_change(
    recorded_pairs: RecordedPairs,
    receiver: RecordedReceiver,
    component: Component,
    senders: Senders,
    output: SenderOutput,
) -> ReceiverChange:
    """The change of one receiver's z, without rows whose change is rounded away when it is added to the residual."""
    at = receiver.at[senders.prompt]  # (row,)
    can_attend = senders.token == at if component == "q" else senders.token <= at
    rows = torch.nonzero(can_attend & (at >= 0)).reshape(-1)
    head = receiver.node.head if component == "q" else receiver.head.parts.kv_head(receiver.node.head)
    source = senders.prompt[rows]
    projection = output[component, receiver.node.layer][rows, head]  # (row, head_dim)
    z = receiver.head.changed_z(component, projection, source, senders.token[rows])
    change = z - receiver.head.z[source]  # (row, head_dim)
    relative_change = receiver.relative_change(change, source)  # (row,)
    changed = torch.nonzero(relative_change > ROUNDED_AWAY * torch.finfo(change.dtype).eps).reshape(-1).cpu()
    slope = recorded_pairs.slopes[receiver.node.layer][source, receiver.node.head, at[rows]].to(
        change
    )  # (row, head_dim)
    estimate = (change * slope).sum(-1)  # (row,)
    return ReceiverChange(receiver, rows[changed], change[changed], relative_change[changed], estimate[changed])
