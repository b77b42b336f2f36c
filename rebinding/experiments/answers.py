"""The answer of a prompt among the objects of its story: its logit, margin, hit and probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind
from rebinding.experiments.tokens import positions, prompt_blocks, token_batch
from rebinding.surgery import Read, Surgeon
from rebinding.surgery.sites import Reduce
from rebinding.task.prompts import TokenizedPrompt

MEASURES = ("label_logit", "margin", "hit", "probability")
"""The answer's logit, its margin over the best other object, whether it beats them all, and its probability."""
CIRCUITS = Kind("circuits", ("circuit", "prompt", *MEASURES))
"""Circuits under any names: the result of `evaluate`."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The candidates of each prompt: `tokens` (prompt, candidate, alias), the right one at `right` (prompt,).

    A candidate with fewer aliases than the widest repeats one; its logit is the largest of its aliases'. `lowest` says
    which candidate wins equal logits: as published the lowest token, else none. In 16 bits equal logits are common.
    """

    tokens: Tensor
    right: Tensor
    lowest: bool = False

    def of(self, prompts: slice) -> Answers:
        """The candidates of some prompts."""
        return replace(self, tokens=self.tokens[prompts], right=self.right[prompts])

    def take(self, source: Tensor) -> Reduce:
        """Keep (row, measure): the answer's logit, its margin over the best other candidate, hit, and probability.

        A hit is a logit above that of every other candidate, or, with `lowest`, the answer's token being the lowest of
        those with the largest logit. The probability sums over the answer's distinct aliases.
        """

        def measures(logits: Tensor, rows: Tensor) -> Tensor:
            prompts = source[rows]
            tokens, right = self.tokens[prompts].to(logits.device), self.right[prompts].to(logits.device)
            flat = logits[:, 0].float()  # (row, vocabulary)
            logits_of_tokens = flat.gather(1, tokens.flatten(1)).view(tokens.shape)  # (row, candidate, alias)
            best = logits_of_tokens.amax(dim=2)  # (row, candidate)
            label = best.gather(1, right[:, None])  # (row, 1)
            others = best.scatter(1, right[:, None], -torch.inf).amax(dim=1, keepdim=True)  # (row, 1)
            of_answer = logits_of_tokens[torch.arange(len(right)), right]  # (row, alias)
            aliases = tokens[torch.arange(len(right)), right].sort(dim=1)
            is_repeated = torch.zeros_like(aliases.values, dtype=torch.bool)
            is_repeated[:, 1:] = aliases.values[:, 1:] == aliases.values[:, :-1]
            of_answer = of_answer.gather(1, aliases.indices).masked_fill(is_repeated, -torch.inf)
            probability = torch.exp(of_answer.logsumexp(1) - flat.logsumexp(1))[:, None]
            return torch.cat([label, label - others, self._hits(logits_of_tokens, tokens, right), probability], dim=1)

        return measures

    def _hits(self, logits: Tensor, tokens: Tensor, right: Tensor) -> Tensor:
        """1 where the right candidate wins, else 0: (row, 1); from logits and tokens (row, candidate, alias)."""
        rows, best = torch.arange(len(right)), logits.amax(dim=2)  # (row,), (row, candidate)
        if not self.lowest:
            others = best.scatter(1, right[:, None], -torch.inf).amax(dim=1)  # (row,)
            return (best[rows, right] > others).float()[:, None]
        largest = logits == best.amax(dim=1)[:, None, None]  # (row, candidate, alias)
        first = tokens.masked_fill(~largest, torch.iinfo(tokens.dtype).max).flatten(1).amin(dim=1)  # (row,)
        return (tokens[rows, right] == first[:, None]).any(dim=1, keepdim=True).float()


def full_model(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], answers: Answers, ids: Sequence[int]) -> Evidence:
    """Measure the unedited model like a circuit."""
    parts = []
    for where in prompt_blocks(surgeon, prompts):
        of_block = answers.of(where)
        take = of_block.take(torch.arange(len(prompts[where])))
        read = Read("logits", positions=positions(prompts[where], "readout")[:, None], reduce=take)
        parts += surgeon.run(surgeon.record(token_batch(prompts[where])), [], [read])
    return CIRCUITS.evidence(as_table(["full model"], ids, torch.cat(parts)[None]), {"ablation": None})


def as_table(names: Sequence[str], ids: Sequence[int], values: Tensor) -> pd.DataFrame:
    """Values (circuit, prompt, measure) as a table."""
    frame = pd.DataFrame(
        {"circuit": [name for name in names for _ in ids], "prompt": [number for _ in names for number in ids]}
    )
    flat = values.reshape(len(frame), len(MEASURES)).cpu()
    return frame.assign(**{name: flat[:, column].numpy() for column, name in enumerate(MEASURES)})
