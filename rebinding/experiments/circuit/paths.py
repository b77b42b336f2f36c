"""Section 4.1: path patching. Which heads send what the next group reads?

A stage scores every head as a sender. Two runs of the clean prompt:

1. *sender run*: the sender's z at its role is replaced by its value in the noise prompt; the receivers' component
   (their q, k, v, or k and v) is read at the receiver role. With `frozen="all"` every other head's z is held at its
   clean value, MLPs and norms are recomputed (the textbook form); with `frozen="none"` everything is recomputed (the
   published helpers).
2. *receiver run*: a clean run into which those components are written, nothing frozen.

What is kept is the answer's logit, probability and lead over the other objects at the readout, before and after; a
score is made of these (`discovery.py`). A first stage has no receivers: it is read from the sender run itself.

Everything that cannot change the result is skipped, exactly: a sender run computes the tokens up to the receiver
role, from the sender's layer to the last receiver's; frozen, it computes one token and only MLPs. A receiver run starts
at the first receiver whose component moved, at the receiver role. Senders above every receiver score exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Literal, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.evidence.blocks import Tick, in_blocks
from rebinding.evidence.store import Shelf
from rebinding.experiments.circuit.kinds import OF_ANSWER, PATHS
from rebinding.experiments.circuit.patching import Block, Component, receiver_run, sender_run
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import Group
from rebinding.surgery import Read, Recording, Surgeon
from rebinding.surgery.sites import Scope
from rebinding.world.prompts import Encoded, Prompt
from rebinding.world.strata import stratum

Frozen: TypeAlias = Literal["all", "none"]


@dataclass(frozen=True)
class Stage:
    """Senders at a role, receivers with a component at a role, and how many senders are kept as the group.

    `receivers` names the group found by an earlier stage; None stands for the logits.
    """

    group: Group
    sender: str
    receivers: Group | None
    component: Component | None
    at: str | None
    keep: int

    def __post_init__(self) -> None:
        if (self.receivers is None) != (self.component is None) or (self.receivers is None) != (self.at is None):
            raise ValueError(
                f"stage {self.group}: receivers, component and at go together; leave all three out to read the logits"
            )


PAPER: tuple[Stage, ...] = (
    Stage("A", "readout", None, None, None, 50),
    Stage("B", "readout", "A", "q", "readout", 50),
    Stage("C", "question_box", "B", "v", "question_box", 25),
    Stage("D", "swap_partner", "C", "kv", "swap_partner", 10),
    Stage("E", "context_partner", "D", "v", "context_partner", 10),
)
"""The paper's five stages. D reads C's keys and values at the swap label: see `PAPER_LITERAL`."""

PAPER_LITERAL: tuple[Stage, ...] = (*PAPER[:3], Stage("D", "swap_partner", "C", "q", "question_box", 10), PAPER[4])
"""The paper's words: D acts on C's query at the question box. Frozen, nothing carries a value from one token to the
other, so every score of this D is exactly zero; it is positive only through heads in between (`frozen="none"`)."""

PRAKASH: tuple[Stage, ...] = (
    Stage("A", "readout", None, None, None, 68),
    Stage("B", "readout", "A", "q", "readout", 28),
    Stage("C", "question_box", "B", "v", "question_box", 40),
    Stage("D", "context_asked", "C", "v", "context_asked", 5),
)
"""The stages of the circuit for static entity tracking on which the paper's groups are modelled: value fetchers,
position transmitters, position detectors, structure readers."""


@dataclass(frozen=True)
class PathSettings:
    """What the literature mixes up: what is frozen, and whether k and v mean a KV group or one query head."""

    frozen: Frozen = "all"
    scope: Scope = "head"
    block: int = 16


@dataclass(frozen=True, eq=False)
class NoisePairs:
    """The prompts of a discovery: clean and noise, aligned, with the answer tokens of the clean ones.

    Recordings of the clean prompts are kept from stage to stage; so is each noise prompt's z at the sender roles.
    """

    ids: tuple[int, ...]
    clean: tuple[Encoded, ...]
    noise: tuple[Encoded, ...]
    labels: Tensor
    rivals: Tensor
    """The other objects' tokens (prompt, object); none at all, where only the answer's own logit is wanted."""
    recordings: dict[tuple[int, int], Recording] = field(default_factory=dict, repr=False)
    noise_z: dict[tuple[int, int, str], list[Tensor]] = field(default_factory=dict, repr=False)

    def block(self, surgeon: Surgeon, stage: Stage, where: slice) -> Block:
        """A block of prompts, recorded, as one stage needs it."""
        clean, noise = self.clean[where], self.noise[where]
        span, sent = (where.start, where.stop), (where.start, where.stop, stage.sender)
        if span not in self.recordings:
            self.recordings[span] = surgeon.record(token_batch(clean), keep={"z"})
        if sent not in self.noise_z:
            at, heads = positions(noise, stage.sender)[:, None], range(surgeon.anatomy.n_heads)
            reads = [Read("z", layer, positions=at, heads=heads) for layer in range(surgeon.anatomy.n_layers)]
            recorded = surgeon.record(token_batch(noise))
            self.noise_z[sent] = surgeon.run(recorded, [], reads)  # (prompt, head, 1, head_dim) a layer
        return Block(
            surgeon,
            self.recordings[span],
            self.noise_z[sent],
            self.labels[where],
            self.rivals[where],
            sender_at=positions(clean, stage.sender),
            receiver_at=None if stage.at is None else positions(clean, stage.at),
            readout=positions(clean, "readout"),
        )


def score_stage(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stage: Stage,
    receivers: Sequence[Head] = (),
    *,
    senders: Sequence[Head] | None = None,
    settings: PathSettings | None = None,
    shelf: Shelf | None = None,
) -> Evidence:
    """Every head (or some) as a sender of one stage: a row per prompt and head, with the answer before and after.

    With a shelf, blocks of prompts are kept as they are done, and an interrupted stage goes on from there.
    """
    if stage.receivers is not None and not receivers:
        raise ValueError(f"stage {stage.group} sends to group {stage.receivers}, which is empty: nothing to score")
    settings = settings or PathSettings()
    receivers = sorted(receivers)
    described = {"stage": asdict(stage), "receivers": [list(head) for head in receivers], **asdict(settings)}
    if senders is None:
        senders = list(product(range(surgeon.anatomy.n_layers), range(surgeon.anatomy.n_heads)))
    else:
        senders = sorted(set(senders))
        described["senders"] = [list(head) for head in senders]

    def compute(prompts: Sequence[int], tick: Tick) -> Evidence:
        block = pairs.block(surgeon, stage, slice(prompts[0], prompts[-1] + 1))
        frozen = settings.frozen == "all"
        if stage.component is None:
            before, after = sender_run(block, senders, frozen=frozen)
        else:
            before, after = receiver_run(
                block, senders, stage.component, receivers, frozen=frozen, scope=settings.scope
            )
        tick(len(senders) * len(prompts))
        told = [(pairs.ids[number], written(pairs.clean[number].prompt)) for number in prompts]
        rows = _rows(told, senders, before, after, block.moved(senders))
        return PATHS.evidence(rows, described)

    return in_blocks(
        range(len(pairs.ids)),
        compute,
        experiment=f"paths-{stage.group}",
        size=settings.block,
        cost=lambda _: len(senders),
        content=lambda number: [
            pairs.clean[number].ids,
            pairs.noise[number].ids,
            int(pairs.labels[number]),
            pairs.rivals[number].tolist(),
        ],
        shelf=shelf and shelf.of(__name__, type(surgeon).__module__, settings=described),
    )


def written(prompt: Prompt) -> str:
    """The prompt's stratum as a table holds it."""
    return ".".join(map(str, stratum(prompt)))


def _rows(
    told: Sequence[tuple[int, str]], senders: Sequence[Head], before: Tensor, after: Tensor, moved: Tensor
) -> pd.DataFrame:
    """A table of the answer's measures `before` (prompt, 3) and `after` (sender, prompt, 3), and of how far each
    sender `moved` (sender, prompt); prompts are told by id and stratum."""
    n = len(told)
    heads = torch.tensor(senders).repeat_interleave(n, 0)  # (row, 2)
    again = before.repeat(len(senders), 1)  # (row, 3)
    measured = torch.cat([again, after.reshape(-1, 3), moved.reshape(-1, 1).to(after.device)], dim=1).cpu()
    names = [*(f"{name}_orig" for name in OF_ANSWER), *(f"{name}_patch" for name in OF_ANSWER), "moved"]
    ids, strata = zip(*told, strict=True)
    columns = dict(zip(names, measured.unbind(1), strict=True))
    return pd.DataFrame(
        {
            "prompt": ids * len(senders),
            "stratum": strata * len(senders),
            "layer": heads[:, 0].numpy(),
            "head": heads[:, 1].numpy(),
            **{name: values.numpy() for name, values in columns.items()},
        }
    )
