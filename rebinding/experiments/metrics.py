"""Metrics: functions of the logits at the readout that say how well a run does.

A metric gets the logits of some rows (row, vocabulary), each row an edited run of a prompt, and the clean run of the
same prompts (`CleanRun`). It returns a number for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from rebinding.surgery import Read, Surgeon
from rebinding.surgery.sites import Reduce, SurgeryError


@dataclass(frozen=True, eq=False)
class CleanRun:
    """The clean prompt of each row: its unedited `logits` (row, vocabulary), and its `answers` (row, candidate), the
    tokens of the candidates, the right one first; without answers there are no columns."""

    answers: Tensor
    _logits: Callable[[], Tensor]

    @property
    def logits(self) -> Tensor:
        """The logits at the readout of the unedited run (row, vocabulary), in float32 at least."""
        return self._logits()


Metric: TypeAlias = Callable[[Tensor, CleanRun], Tensor]


def logit_difference(logits: Tensor, clean: CleanRun) -> Tensor:
    """The right answer's logit minus the mean of the other candidates'; the logit itself if there are no others."""
    of_answers = logits.gather(1, _answers(clean, "logit_difference"))  # (row, candidate)
    right = of_answers[:, 0]
    return right if of_answers.shape[1] == 1 else right - of_answers[:, 1:].mean(1)


def probability(logits: Tensor, clean: CleanRun) -> Tensor:
    """The right answer's probability in the whole vocabulary."""
    return logits.softmax(1).gather(1, _answers(clean, "probability")[:, :1])[:, 0]


def accuracy(logits: Tensor, clean: CleanRun) -> Tensor:
    """1 where the right answer has the largest logit among the candidates, and no other has as large a one; else 0."""
    of_answers = logits.gather(1, _answers(clean, "accuracy", 2))  # (row, candidate)
    return (of_answers[:, 0] > of_answers[:, 1:].amax(1)).to(logits.dtype)


def kl_divergence(logits: Tensor, clean: CleanRun) -> Tensor:
    """The divergence of the next-token distribution from that of the clean run, KL(clean, edited), in nats: 0 for the
    clean run, and larger the more an edit changes. It needs no answers."""
    own, unedited = logits.log_softmax(1), clean.logits.to(logits).log_softmax(1)  # (row, vocabulary)
    return (unedited.exp() * (unedited - own)).sum(1)


def _answers(clean: CleanRun, name: str, minimum: int = 1) -> Tensor:
    if clean.answers.shape[1] < minimum:
        raise SurgeryError(
            f"{name} needs {minimum} or more answer candidates a prompt; these prompts have {clean.answers.shape[1]}."
            " Give answers when you make the prompts, or take kl_divergence"
        )
    return clean.answers


@dataclass(frozen=True, eq=False)
class Score:
    """A metric on some clean prompts: `answers` (prompt, candidate), and their unedited `logits` (prompt,
    vocabulary)."""

    metric: Metric
    answers: Tensor
    logits: Tensor

    def part(self, where: slice) -> Score:
        """The same on some of the prompts."""
        return replace(self, answers=self.answers[where], logits=self.logits[where])

    def of(self, logits: Tensor, prompts: Tensor) -> Tensor:
        """The metric of logits (row, vocabulary) of rows that continue `prompts` (row,): (row,), on their device."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        rows = prompts.cpu()
        clean = CleanRun(self.answers[rows].to(logits.device), lambda: self.logits[rows].to(logits.device))
        value = self.metric(logits, clean)
        if not isinstance(value, Tensor) or value.shape != logits.shape[:1]:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SurgeryError(
                f"a metric gets logits (row, vocabulary), here {tuple(logits.shape)}, and returns a number for each"
                f" row, a tensor of shape {tuple(logits.shape[:1])}; got {shape}"
            )
        if not bool(torch.isfinite(value).all()):
            raise SurgeryError(f"the metric is not finite in {int((~torch.isfinite(value)).sum())} of {len(rows)} rows")
        return value.to(logits.dtype)

    def take(self, source: Tensor) -> Reduce:
        """The reduction of logits at one position to the metric (row, 1, 1), for rows that continue `source`."""
        return lambda logits, rows: self.of(logits[:, 0], source[rows])[:, None, None]

    def in_place_of_lead(self, take: Reduce, source: Tensor) -> Reduce:
        """A reduction to (row, 1, 3) with the metric in its last column (`rebinding.experiments.tokens.answer_of`)."""

        def with_metric(logits: Tensor, rows: Tensor) -> Tensor:
            others, metric = take(logits, rows)[..., :2], self.take(source)(logits, rows)
            return torch.cat([others, metric.to(others)], dim=-1)

        return with_metric

    def slope(self) -> float:
        """The mean over prompts of the absolute gradient by the logits of the unedited run, summed over the vocabulary;
        0 for a metric without a gradient."""
        with torch.enable_grad():
            logits = self.logits.clone().requires_grad_()
            value = self.of(logits, torch.arange(len(logits)))
            if not value.requires_grad:
                return 0.0
            (gradient,) = torch.autograd.grad(value.sum(), logits)
        return float(gradient.abs().sum(1).mean())


def scores_on(surgeon: Surgeon, metrics: Sequence[Metric], tokens: Tensor, answers: Tensor | None) -> tuple[Score, ...]:
    """Metrics on prompts (prompt, token), which are run unedited once; a metric that does not fit is refused."""
    for metric in metrics:
        if not callable(metric):
            raise SurgeryError(
                f"a metric is a function of logits and the clean run, such as kl_divergence; got {metric!r:.60}"
            )
    if not metrics:
        return ()
    size = surgeon.prompts_at_once(tokens.shape[1])
    parts = [
        surgeon.run(surgeon.record(part), [], [Read("logits", at=tokens.shape[1] - 1)])[0].cpu()
        for part in tokens.split(size)
    ]
    logits = torch.cat(parts)  # (prompt, vocabulary)
    candidates = torch.zeros(len(tokens), 0, dtype=torch.long) if answers is None else answers
    logits = logits if logits.dtype == torch.float64 else logits.float()
    scores = tuple(Score(metric, candidates, logits) for metric in metrics)
    for score in scores:
        score.of(logits, torch.arange(len(tokens)))
    return scores
