"""What receivers hear of senders: the message at the sender's token, and the z that each receiver makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from rebinding.experiments.search.request import Settings
from rebinding.experiments.search.scene import Scene, Senders
from rebinding.paper.graph import Node
from rebinding.surgery import Read
from rebinding.surgery.heard import Component, Ear, ear

COMPONENTS: tuple[Component, ...] = ("q", "k", "v")
MESSAGES = 1 << 27
"""Bytes of what senders say that are held at once."""
ROUNDED_AWAY = 0.1
"""Of a unit in the last place of the residual."""
Said: TypeAlias = dict[tuple[Component, int], Tensor]
"""What reaches the projections above, at each sender's token: by component and layer (row, head, head_dim)."""


@dataclass(frozen=True, eq=False)
class Receiver:
    """A head at a token, ready to listen: `at` is -1 in prompts that lack the token."""

    node: Node
    at: Tensor
    ear: Ear
    write: Tensor
    size: Tensor

    def moved(self, change: Tensor, source: Tensor) -> Tensor:
        """How much of the residual there is written anew by a change of z (row, head_dim): (row,)."""
        written: Tensor = (change @ self.write.T).norm(dim=-1)
        return written / self.size[source]


@dataclass(frozen=True, eq=False)
class Heard:
    """What one receiver makes of senders: the rows in which it can hear them, and how its z changes there.

    `moved` is the share of the residual that is written anew, `guess` what that does to the score by its slope.
    """

    receiver: Receiver
    rows: Tensor
    change: Tensor
    moved: Tensor
    guess: Tensor


def receiver(scene: Scene, node: Node) -> Receiver:
    """Listen to what a node hears in the clean prompts."""
    anatomy, recording, every = scene.surgeon.anatomy, scene.recording, torch.arange(scene.n)
    at = scene.pairs.at(node.token)
    there = at.clamp(min=0)
    layer = anatomy.layer_modules(scene.surgeon.model)[node.layer]
    span = slice(node.head * anatomy.head_dim, (node.head + 1) * anatomy.head_dim)
    output = recording.sites["attention_output"][node.layer][every, there]  # (prompt, hidden)
    resid = recording.sites["resid"][node.layer][every, there]  # (prompt, hidden)
    shrink = anatomy.attention_write(layer, output).norm(dim=-1) / output.norm(dim=-1)  # (prompt,)
    projection = cast(nn.Linear, layer.get_submodule(anatomy.output))
    weight = projection.weight[:, span].detach()  # (hidden, head_dim)
    return Receiver(
        node, at, ear(scene.surgeon, recording, node.layer, node.head, there), weight, resid.norm(dim=-1) / shrink
    )


def attended(scene: Scene, receivers: Sequence[Receiver], settings: Settings) -> Tensor:
    """(prompt, token): where senders may stand: up to the receivers, from the first token that differs."""
    token = torch.arange(scene.pairs.length)
    reach = torch.stack([one.at for one in receivers]).amax(0)  # (prompt,)
    found = (token[None] >= scene.pairs.first[:, None]) & (token[None] <= reach[:, None])
    if settings.listens:
        seen = torch.stack([(one.ear.pattern.cpu() >= settings.listens) & (one.at >= 0)[:, None] for one in receivers])
        own = torch.stack([token[None] == one.at[:, None] for one in receivers])  # (receiver, prompt, token)
        found &= (seen | own).flatten(0, 1).any(0)  # by place: in any prompt
    return found


def portions(scene: Scene, senders: Senders, receivers: Sequence[Receiver]) -> Iterator[Senders]:
    """Senders, as many at once as `MESSAGES` has room for."""
    heads = 3 * len({one.node.layer for one in receivers}) * scene.surgeon.anatomy.n_heads
    size = max(1, MESSAGES // (heads * scene.surgeon.anatomy.head_dim * scene.noise_z[0].element_size()))
    for start in range(0, senders.n, size):
        yield senders.take(torch.arange(start, min(start + size, senders.n)))


def say(scene: Scene, senders: Senders, receivers: Sequence[Receiver]) -> Said:
    """The sender runs, every head but the sender held, attention with them.

    What reaches the projections above, at each sender's token: by component and layer (row, head, head_dim).
    """
    group = scene.surgeon.anatomy.group
    keys, reads = [], []
    for layer in sorted({one.node.layer for one in receivers}):
        heads = sorted({one.node.head for one in receivers if one.node.layer == layer})
        for site in COMPONENTS:
            named = heads if site == "q" else sorted({head // group for head in heads})
            reads.append(Read(site, layer, positions=senders.token[:, None], heads=named))
            keys.append((site, layer))
    edits = [senders.but_for(scene.noise_z)]
    values = scene.surgeon.run(
        scene.recording, edits, reads, source=senders.prompt, attention="frozen", allow_noop=True
    )
    every = scene.surgeon.anatomy.n_heads
    said: Said = {}
    for (site, layer), read, value in zip(keys, reads, values, strict=True):
        assert read.heads is not None
        spread = value.new_zeros(senders.n, every, value.shape[-1])  # (row, head, head_dim)
        spread[:, read.heads[0]] = value[:, :, 0]
        said[site, layer] = spread
    return said


def hear(scene: Scene, one: Receiver, component: Component, senders: Senders, said: Said) -> Heard:
    """What one receiver hears; rows in which its z changes by less than adding it to the residual would round away are
    left out."""
    at = one.at[senders.prompt]  # (row,)
    able = senders.token == at if component == "q" else senders.token <= at
    rows = torch.nonzero(able & (at >= 0)).reshape(-1)
    head = one.node.head if component == "q" else scene.surgeon.anatomy.kv_head(one.node.head)
    source = senders.prompt[rows]
    z = one.ear.hears(component, said[component, one.node.layer][rows, head], source, senders.token[rows])
    change = z - one.ear.z[source]  # (row, head_dim)
    moved = one.moved(change, source)  # (row,)
    felt = torch.nonzero(moved > ROUNDED_AWAY * torch.finfo(change.dtype).eps).reshape(-1).cpu()
    slope = scene.slopes[one.node.layer][source, one.node.head, at[rows]].to(change)  # (row, head_dim)
    return Heard(one, rows[felt], change[felt], moved[felt], (change * slope).sum(-1)[felt])
