"""Encoded prompts as tensors, and what is read of them.

Token ids, positions of roles, blocks of prompts, and what a read keeps of logits and attention patterns.

An answer has four measures among the objects of its story: logit, margin, hit and probability.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind
from rebinding.experiments.metrics import Score
from rebinding.surgery import Read, Surgeon
from rebinding.surgery.sites import Reduce, Site
from rebinding.task.prompts import PromptError, TokenizedPrompt, unequal
from rebinding.task.text import token_at

BLOCK = 20
"""Prompts of a block of evidence in section 3: an interrupted run loses them."""


def token_batch(encoded: Sequence[TokenizedPrompt]) -> Tensor:
    """Token ids of prompts of equal length. Nothing is ever padded: unequal lengths are an error."""
    if not encoded:
        raise PromptError("no prompts given; a batch needs at least one")
    for prompt in encoded:
        if len(prompt) != len(encoded[0]):
            raise PromptError(unequal(encoded[0], prompt))
    return torch.tensor([prompt.ids for prompt in encoded], dtype=torch.long)  # (prompt, token)


def positions(encoded: Sequence[TokenizedPrompt], role: str) -> Tensor:
    """The position of `role`, or of another token name, in each prompt."""
    tokens = [token_at(role, prompt.roles) for prompt in encoded]
    places = [token for token in tokens if token is not None]
    if len(places) < len(tokens):
        first = encoded[tokens.index(None)]
        raise PromptError(
            f"{len(tokens) - len(places)} of {len(encoded)} prompts have no role {role!r}; the first of them has"
            f" {', '.join(first.roles)}"
        )
    return torch.tensor(places, dtype=torch.long)  # (prompt,)


def attention_on(keys: Tensor) -> Reduce:
    """Keep the attention on some keys, a line of `keys` (row, key) for each row: (row, head, key)."""

    def take(pattern: Tensor, rows: Tensor) -> Tensor:
        index = keys[rows].to(pattern.device)[:, None].expand(-1, pattern.shape[1], -1)
        return pattern[:, :, 0].gather(-1, index).float()

    return take


def answer_of(tokens: Tensor, rivals: Tensor) -> Reduce:
    """Keep the logit, full-softmax probability and lead of one token for each row: (row, position, 3).

    The lead is the logit minus the mean logit of the `rivals` (row, rival), the other objects of the story. It is
    linear in the logits, so what lifts every object alike does not count, and it still changes where the probability is
    so near 1 that a relative change says nothing. Without rivals it is the logit itself.
    """

    def take(logits: Tensor, rows: Tensor) -> Tensor:
        def gathered(candidates: Tensor) -> Tensor:
            index = candidates[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
            return logits.gather(-1, index).float()  # (row, position, token)

        logit = gathered(tokens[:, None])  # (row, position, 1)
        log_total = torch.logsumexp(logits.float(), dim=-1, keepdim=True)  # (row, position, 1)
        lead = logit - gathered(rivals).mean(-1, keepdim=True) if rivals.shape[1] else logit
        return torch.cat([logit, torch.exp(logit - log_total), lead], dim=-1)

    return take


def relative_change(new: Tensor, old: Tensor) -> Tensor:
    """The largest change along the last axis, as a share of the largest value there, old or new.

    0 is a no-op edit, which writes what is there already; no edit gives more than 2.
    """
    new, old = new.float(), old.float()
    size = torch.maximum(new.abs(), old.abs()).amax(dim=-1)
    return (new - old).abs().amax(dim=-1) / size.clamp_min(torch.finfo(torch.float32).tiny)


def prompt_blocks(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], size: int | None = None) -> Iterator[slice]:
    """Slices of prompts to record and edit together, `size` of them or as many as the surgeon takes. Experiments on the
    same prompts use the same slices, so that one recording can serve several."""
    if not prompts:
        return iter(())
    return blocks(len(prompts), size or surgeon.prompts_at_once(len(prompts[0])))


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices that cover `count` items, `size` at a time."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


MEASURES = ("label_logit", "margin", "hit", "probability")
"""The answer's logit, its margin over the best other object, whether it beats them all, and its probability."""
METRIC = "metric"
"""The column of a metric of one's own; those of further ones are numbered, `metric_1` and so on."""
CIRCUITS = Kind("circuits", ("circuit", "prompt", *MEASURES), numbered=rf"{METRIC}(_\d+)?")
"""Circuits under any names: the result of `evaluate`."""


def metric_column(number: int) -> str:
    """The column of a metric of one's own."""
    return f"{METRIC}_{number}" if number else METRIC


@dataclass(frozen=True, eq=False)
class Answers:
    """The candidates of each prompt: `tokens` (prompt, candidate, alias), the right one at `right` (prompt,).

    A candidate with fewer aliases than the widest repeats one; its logit is the largest of its aliases'. `lowest` says
    which candidate wins equal logits: as published the lowest token, else none. In 16 bits equal logits are common. A
    metric of one's own is a fifth measure, and there may be more.
    """

    tokens: Tensor
    right: Tensor
    lowest: bool = False
    scores: tuple[Score, ...] = ()

    def of(self, prompts: slice) -> Answers:
        """The candidates of some prompts."""
        scores = tuple(score.part(prompts) for score in self.scores)
        return replace(self, tokens=self.tokens[prompts], right=self.right[prompts], scores=scores)

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
            kept = [label, label - others, self._hits(logits_of_tokens, tokens, right), probability]
            metrics = [score.of(logits[:, 0], prompts)[:, None].to(label) for score in self.scores]
            return torch.cat([*kept, *metrics], dim=1)

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


def full_model(
    surgeon: Surgeon,
    prompts: Sequence[TokenizedPrompt],
    answers: Answers,
    ids: Sequence[int],
    *,
    keep: Collection[Site] = (),
) -> Evidence:
    """Measure the unedited model like a circuit, on recordings that keep some sites: those that are made anyway."""
    parts = []
    for where in prompt_blocks(surgeon, prompts):
        of_block = answers.of(where)
        take = of_block.take(torch.arange(len(prompts[where])))
        read = Read("logits", at=positions(prompts[where], "readout")[:, None], reduce=take)
        parts += surgeon.run(surgeon.record(token_batch(prompts[where]), keep=keep), [], [read])
    return CIRCUITS.evidence(as_table(["full model"], ids, torch.cat(parts)[None]), {"ablation": None})


def as_table(names: Sequence[str], ids: Sequence[int], values: Tensor) -> pd.DataFrame:
    """Values (circuit, prompt, measure) as a table; a fifth measure, and more, are metrics of one's own."""
    frame = pd.DataFrame(
        {"circuit": [name for name in names for _ in ids], "prompt": [number for _ in names for number in ids]}
    )
    flat = values.reshape(len(frame), values.shape[-1]).cpu()
    names_of_metrics = [metric_column(number) for number in range(flat.shape[1] - len(MEASURES))]
    measures = zip((*MEASURES, *names_of_metrics), flat.unbind(1), strict=True)
    return frame.assign(**{name: column.numpy() for name, column in measures})
