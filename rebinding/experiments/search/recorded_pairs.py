"""Recorded pairs, shared by the steps of a search: clean and noise runs, the noise's z token by token, and the senders
whose z differs between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.search.pairs import Pairs
from rebinding.experiments.search.request import LOSSES
from rebinding.experiments.tokens import positions, token_batch
from rebinding.surgery import Edit, Read, Recording, TorchSurgeon
from rebinding.surgery.slopes import z_slopes

ROUNDING = 1e-6
"""Share of the largest z of a layer in a prompt: a smaller difference is rounding (units in the last place of a
sum)."""


@dataclass(frozen=True, eq=False)
class Senders:
    """Heads of one layer at tokens of prompts, as three tensors of equal length."""

    layer: int
    head: Tensor
    token: Tensor
    prompt: Tensor

    @property
    def n(self) -> int:
        return int(self.head.numel())

    def take(self, rows: Tensor) -> Senders:
        """The senders of some rows."""
        return Senders(self.layer, self.head[rows], self.token[rows], self.prompt[rows])

    def noise_edit(self, noise_z: Sequence[Tensor]) -> Edit:
        """The edit that gives row `r` the r-th sender's z from the noise prompt."""
        value = noise_z[self.layer][self.prompt, self.head, self.token][:, None, None]  # (row, 1, 1, head_dim)
        return Edit("z", self.layer, value, positions=self.token[:, None], heads=self.head[:, None])


@dataclass(frozen=True, eq=False)
class RecordedPairs:
    """Recorded pairs. `noise_z[layer]` is (prompt, head, token, head_dim), at the tokens of the clean prompt."""

    surgeon: TorchSurgeon
    pairs: Pairs
    recording: Recording
    noise_z: list[Tensor]
    noise: Recording

    @property
    def n(self) -> int:
        return len(self.pairs.ids)

    @cached_property
    def readout(self) -> Tensor:
        return positions(self.pairs.clean, "readout")

    @cached_property
    def before(self) -> Tensor:
        """The score of the clean prompts (prompt,)."""
        return self.surgeon.run(self.recording, [], [self.read(torch.arange(self.n))])[0][:, 0]

    @cached_property
    def noise_score(self) -> Tensor:
        """The score of the noise prompts (prompt,)."""
        return self.surgeon.run(self.noise, [], [self.read(torch.arange(self.n))])[0][:, 0]

    @cached_property
    def total(self) -> float:
        """The mean loss of score from clean to noise prompts."""
        return float((self.before - self.noise_score).mean())

    def losses(self) -> Evidence:
        """Both scores, prompt by prompt."""
        scores = {"clean": self.before.cpu().numpy(), "noise": self.noise_score.cpu().numpy()}
        return LOSSES.evidence(pd.DataFrame({"prompt": self.pairs.ids, **scores}), {})

    def read(self, source: Tensor) -> Read:
        """The score of rows that continue these prompts."""
        return Read(
            "resid",
            self.surgeon.anatomy.n_layers,
            positions=self.readout[source][:, None],
            reduce=lambda resid, rows: self._score(resid, source[rows]),
        )

    def _score(self, resid: Tensor, prompts: Tensor) -> Tensor:
        """The score (row, position) from the input of the final norm (row, position, hidden). Computes only the logits
        of the story's objects, because the whole vocabulary costs as much as eight layers of a small model."""
        logits = self.surgeon.anatomy.logits(self.surgeon.model, resid, self.pairs.answers[prompts]).float()
        return logits[..., 0] - logits[..., 1:].mean(-1)  # of (row, position, object)

    @cached_property
    def slopes(self) -> list[Tensor]:
        """The gradient of the score with respect to z in the clean prompts, by layer: (prompt, head, token,
        head_dim)."""

        def score(resid: Tensor, prompts: Tensor) -> Tensor:
            rows = torch.arange(len(prompts), device=resid.device)
            return self._score(resid[rows, self.readout[prompts].to(resid.device)][:, None], prompts)[:, 0]

        return z_slopes(self.surgeon.model, self.surgeon.anatomy, token_batch(self.pairs.clean), score)

    def senders(self, layer: int, tokens: Tensor) -> Senders:
        """All heads of a layer at some tokens (prompt, token) whose z differs in the noise prompt."""
        clean, noise = self.recording.sites["z"][layer], self.noise_z[layer]  # (prompt, head, token, head_dim)
        if not clean.numel():
            return Senders(layer, *(torch.empty(0, dtype=torch.long) for _ in range(3)))  # no heads
        size = clean.abs().amax(dim=(1, 2, 3))[:, None, None]  # (prompt, 1, 1)
        is_different = (clean - noise).abs().amax(dim=-1) > ROUNDING * size  # (prompt, head, token)
        prompt, head, token = torch.nonzero(is_different.cpu() & tokens[:, None], as_tuple=True)
        return Senders(layer, head, token, prompt)


def record_pairs(surgeon: TorchSurgeon, pairs: Pairs) -> RecordedPairs:
    """Record the clean and noise prompts of pairs."""
    recording = surgeon.record(token_batch(pairs.clean), keep={"z"})
    noise = surgeon.record(token_batch(pairs.noise), keep={"z"})
    prompts = torch.arange(len(pairs.ids))
    noise_z = [z[prompts[:, None], :, pairs.match].transpose(1, 2) if z.numel() else z for z in noise.sites["z"]]
    return RecordedPairs(surgeon, pairs, recording, noise_z, noise)
