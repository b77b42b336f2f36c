"""One step of the search: what every sender does to the score through the present receivers.

Path patching, textbook form. A *sender* is a head at a token. In the sender run its z is that of the noise prompt,
every other head's z is held, MLPs and norms are recomputed; what then stands at that token in front of a receiver's
query, key or value projection is the sender's message. The receiver, a head at a token of its own, works out its z from
the message (`rebinding.surgery.heard`) with all else as recorded: its query if the two tokens are one, the key or the
value at the sender's token in any case. In the receiver run the change of its z is added in the clean prompt, and
nothing is held: a receiver that hears nothing of a sender still listens to those that do.

**What is left out.** Exactly: senders not below a receiver; tokens before which the two prompts are the same; senders
whose z is the same in both; tokens behind the receiver's or out of its window. By a guess: rows that move their
receivers by less than `SMALL` of the residual, and of which the slope of the score (`rebinding.surgery.slopes`) says
that they do less than `FEW` of what would be kept, divided by `SLACK`. So small a change is nearly linear; where a head
is saturated and its slope 0, a small change does nothing, and a large one is run whatever the slope says. With
`exhaustive` every row is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.search.listening import COMPONENTS, Heard, attended, hear, portions, receiver, say
from rebinding.experiments.search.request import STEPS, Settings
from rebinding.experiments.search.scene import Scene, Senders
from rebinding.paper.graph import Node
from rebinding.surgery import Edit
from rebinding.surgery.heard import Component

LEAST = 0.1
"""Of what is kept: less is nothing, in an edge and in what a first block of prompts says of a sender."""
FEW = 0.25
"""Of what is kept: a row that does less, in its one prompt, is not missed."""
SLACK = 2.0
"""By how much the guess of a small change may be wrong."""
SMALL = 0.02
"""Of the residual: a change of so much is not guessed at."""
AT_ONCE = 512
"""Rows of receiver runs that are put together."""
Allowed: TypeAlias = Sequence[Node] | None
"""Senders to look at; all if None."""


def direct(scene: Scene, allowed: Allowed = None) -> pd.DataFrame:
    """The first step, whose receiver is the logits: senders stand at the readout."""
    tokens = torch.zeros(scene.n, scene.pairs.length, dtype=torch.bool)
    tokens[torch.arange(scene.n), scene.readout] = True
    parts = []
    for layer in range(scene.surgeon.anatomy.n_layers):
        senders = _allowed(scene, scene.senders(layer, tokens), allowed)
        if senders.n:
            reads = [scene.read(senders.prompt)]
            edits = [senders.but_for(scene.noise_z)]
            (after,) = scene.surgeon.run(
                scene.recording, edits, reads, source=senders.prompt, attention="frozen", allow_noop=True
            )
            parts.append(_rows(scene, "direct", senders, after[:, 0], torch.ones(senders.n)))
    return _together(parts)


def through(scene: Scene, nodes: Sequence[Node], settings: Settings, allowed: Allowed = None) -> pd.DataFrame:
    """A later step: senders below the receivers, at every token that some receiver can look at."""
    receivers = [receiver(scene, node) for node in nodes]
    waiting: dict[Component, list[tuple[Senders, list[Heard]]]] = {component: [] for component in COMPONENTS}
    for layer in range(max(node.layer for node in nodes)):
        above = [one for one in receivers if one.node.layer > layer]
        senders = _allowed(scene, scene.senders(layer, attended(scene, above, settings)), allowed)
        for part in portions(scene, senders, above):
            said = say(scene, part, above)
            for component in COMPONENTS:
                heard = [hear(scene, one, component, part, said) for one in above]
                waiting[component].append((part, heard))
    floor = 0.0 if settings.exhaustive else FEW / SLACK * settings.share * abs(scene.total)
    return _together([_receive(scene, component, parts, floor) for component, parts in waiting.items() if parts])


def _allowed(scene: Scene, senders: Senders, allowed: Allowed) -> Senders:
    if allowed is None:
        return senders
    table = torch.zeros(scene.surgeon.anatomy.n_heads, scene.n, scene.pairs.length, dtype=torch.bool)
    for node in allowed:
        if node.layer == senders.layer:
            at = scene.pairs.at(node.token)
            table[node.head, torch.nonzero(at >= 0).reshape(-1), at[at >= 0]] = True
    return senders.take(torch.nonzero(table[senders.head, senders.prompt, senders.token]).reshape(-1))


def _receive(
    scene: Scene, component: Component, parts: Sequence[tuple[Senders, list[Heard]]], floor: float
) -> pd.DataFrame:
    """The receiver runs of one component: of rows that move a receiver much, or may move the score by `floor`."""
    moves, guesses = [], []
    for senders, heard in parts:
        move, guess = torch.zeros(senders.n), torch.zeros(senders.n)
        for one in heard:
            move[one.rows] = torch.maximum(move[one.rows], one.moved.cpu())
            guess[one.rows] += one.guess.float().cpu()
        moves.append(move)
        guesses.append(guess)
    number = torch.cat([torch.full((move.numel(),), place) for place, move in enumerate(moves)])
    row = torch.cat([torch.arange(move.numel()) for move in moves])
    size, guess = torch.cat(moves), torch.cat(guesses)
    chosen = torch.nonzero((size > 0) & ((size >= SMALL) | (guess.abs() >= floor))).reshape(-1)
    found = []
    for chunk in chosen.split(AT_ONCE) if chosen.numel() else ():
        mine = [(place, chunk[number[chunk] == place]) for place in number[chunk].unique().tolist()]
        after = _run(scene, [(*parts[place], row[rows]) for place, rows in mine])
        for (place, rows), value in zip(mine, after.split([rows.numel() for _, rows in mine]), strict=True):
            found.append(_rows(scene, component, parts[place][0].take(row[rows]), value, size[rows]))
    return _together(found)


def _run(scene: Scene, parts: Sequence[tuple[Senders, Sequence[Heard], Tensor]]) -> Tensor:
    """The score (row,) in clean prompts in which every receiver says what some senders make it say: of each part the
    rows that are named, one part after the other."""
    source = torch.cat([senders.prompt[rows] for senders, _, rows in parts])  # (row,)
    changes: dict[Node, list[tuple[Tensor, Tensor, Tensor]]] = {}
    begin = 0
    for senders, heard, rows in parts:
        place = torch.full((senders.n,), -1)
        place[rows] = torch.arange(begin, begin + rows.numel())
        begin += rows.numel()
        for one in heard:
            mine = torch.nonzero((place[one.rows] >= 0) & (one.moved.cpu() > 0)).reshape(-1)
            at = one.receiver.at[senders.prompt[one.rows[mine]]]
            changes.setdefault(one.receiver.node, []).append((place[one.rows[mine]], at, one.change[mine]))
    edits = []
    for node, told in changes.items():
        where, at, value = (torch.cat(column) for column in zip(*told, strict=True))
        if where.numel():
            value = value[:, None, None]  # (row, 1, 1, head_dim)
            edits.append(
                Edit("z", node.layer, value, positions=at[:, None], heads=(node.head,), rows=where, mode="add")
            )
    (after,) = scene.surgeon.run(scene.recording, edits, [scene.read(source)], source=source, allow_noop=True)
    return after[:, 0]


def _rows(scene: Scene, component: str, senders: Senders, after: Tensor, moved: Tensor) -> pd.DataFrame:
    pairs, prompts, tokens = scene.pairs, senders.prompt.tolist(), senders.token.tolist()
    return pd.DataFrame(
        {
            "prompt": [pairs.ids[prompt] for prompt in prompts],
            "component": component,
            "layer": senders.layer,
            "head": senders.head.numpy(),
            "token": tokens,
            "place": [pairs.places[token] for token in tokens],
            "function": [pairs.functions[prompt][token] or "" for prompt, token in zip(prompts, tokens, strict=True)],
            "before": scene.before[senders.prompt].cpu().numpy(),
            "after": after.cpu().numpy(),
            "moved": moved.cpu().numpy(),
        }
    )


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(STEPS.columns))
