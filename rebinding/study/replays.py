"""Does a replay of real prompts, with nothing edited, give what the model gives by itself?

The self-check asks this at load, of random tokens and at every one of them (`rebinding.subjects.repeat`). Here it is
asked of prompts that are judged, at their readout, as evidence of its own: a run which reads its evidence from the
store need not load the model for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.experiments.tokens import token_batch
from rebinding.study.bench import Bench, measures
from rebinding.subjects.allowance import Allowance, size
from rebinding.subjects.precision import in_float32
from rebinding.subjects.probe import forward
from rebinding.subjects.repeat import NULL_SHIFT
from rebinding.surgery import Edit, Read, TorchSurgeon
from rebinding.surgery.recording import Recording
from rebinding.world.designs import Design

REPLAYS = Kind("replays", ("prompt", "layer", "token", "off", "allowed"))
PROMPTS = 2
"""A kind of layer that is replayed wrongly is so on any prompt."""


@dataclass(frozen=True)
class Replays(OnPrompts):
    """Unedited prompts, replayed from two places each."""

    KIND: ClassVar[Kind] = REPLAYS


def asked(bench: Bench, drawn: Design) -> Replays:
    """The first evaluation prompts."""
    return Replays(bench.draw(drawn, bench.range_of(PROMPTS)))


@measures(Replays)
def measure_replays(bench: Bench, asked: Replays) -> Evidence:
    """By how much the logits at the readout are off, and what rounding allows (`Allowance`), in float32."""
    model, anatomy = bench.subject.model, bench.subject.anatomy
    surgeon, allowance = TorchSurgeon(model, anatomy), Allowance.of_model(model, anatomy)
    rows: list[dict[str, float]] = []
    with in_float32(model, anatomy):
        for number, one in zip(asked.prompts.ids, bench.drawn(asked.prompts).prompts, strict=True):
            tokens = token_batch([one])  # (1, token)
            own = forward(model, anatomy, tokens).logits[0, -1]  # (vocabulary,)
            places = [(0, len(one) // 2), (anatomy.n_layers // 2, 1)]
            found = replay_unedited(surgeon, surgeon.record(tokens), places)  # (place, vocabulary)
            for (layer, token), logits in zip(places, found, strict=True):
                off = {"off": size(logits - own), "allowed": allowance.of(own)}
                rows.append({"prompt": number, "layer": layer, "token": token, **off})
    return REPLAYS.evidence(pd.DataFrame(rows), {})


def replay_unedited(surgeon: TorchSurgeon, recording: Recording, places: Sequence[tuple[int, int]]) -> Tensor:
    """Logits (row, vocabulary) at the end of a prompt, a row run again from each (layer, token)."""
    edits = [
        Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[token], rows=[row], mode="add")
        for row, (layer, token) in enumerate(places)
    ]
    read, source = Read("logits", positions=[recording.length - 1]), torch.zeros(len(places), dtype=torch.long)
    (logits,) = surgeon.run(recording, edits, [read], source=source, allow_still=True)
    return logits[:, 0]
