"""How far do a model's logits move when nothing is done, in another way?

A replay sums what the model's own forward sums, in another order, and so does a batch of another size. In 32 bits that
is nothing beside what is judged; in 16 it may not be. So it is measured, in the model's own dtype and on prompts that
are judged: every change of the readout's logits by an edit that is none, as evidence of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.once import once
from rebinding.experiments.readout import BLOCK, answer_of, blocks
from rebinding.experiments.tokens import token_batch
from rebinding.paper.claim import Claim
from rebinding.study.bench import Bench, measures
from rebinding.subjects.repeat import NULL_SHIFT
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.verdicts.gates import common_shift
from rebinding.world.designs import Design

FLOORS = Kind("floors", ("prompt", "company", "layer", "token", "logit", "lead"))
NULL = ["company", "layer", "token"]
UNTOUCHED = (-1, -1)
"""Stands for the layer and the token of a prompt that is not replayed at all."""
PROMPTS, IN_16_BITS = 8, 100
"""What n prompts have in common is known to t(0.95, n - 1) / sqrt(n) of what one of them spreads: 0.67 of eight, which
is plenty where rounding is 1e-5 of what counts, and 0.17 of a hundred, where it is half of it."""
IN_LOGITS = ("margin", "logit", "dlogit")
"""Metrics that are logits, or differences of them."""


@dataclass(frozen=True)
class Floors(OnPrompts):
    """Unedited prompts, together and alone, and replayed from several places with nothing added."""

    KIND: ClassVar[Kind] = FLOORS


def asked(bench: Bench, drawn: Design) -> Floors:
    """The first evaluation prompts; more of them in a dtype in which chance alone would make a large bound."""
    n = IN_16_BITS if bench.subject.dtype in ("bfloat16", "float16") else PROMPTS
    return Floors(bench.draw(drawn, bench.range_of(n)))


def counts(claim: Claim) -> float | None:
    """The smallest change in logits that counts for a claim; none, where it is not about logits."""
    return min((claim.margin(metric) for metric in claim.metrics if metric in IN_LOGITS), default=None)


@once
def floor_of(evidence: Evidence) -> float:
    """What doing nothing surely does not exceed in the mean, in logits: that of the null edit which does most."""
    return max(
        common_shift(evidence.rows.pivot(index=NULL, columns="prompt", values=measure).to_numpy())
        for measure in ("logit", "lead")
    )


@measures(Floors)
def measure_floors(bench: Bench, asked: Floors) -> Evidence:
    """A row per prompt and null edit: changes against the prompts as recorded together, nothing replayed."""
    prompts = bench.drawn(asked.prompts).prompts
    tokens, answers = token_batch(prompts), bench.answers(prompts)
    objects = answers.tokens[..., 0]  # (prompt, object)
    right = torch.nn.functional.one_hot(answers.right, objects.shape[1]).bool()  # (prompt, object)
    labels, rivals = objects[right], objects[~right].reshape(len(prompts), -1)  # (prompt,), (prompt, other object)
    where = places(bench.surgeon, tokens.shape[1])

    def found(of: slice, where: Sequence[tuple[int, int]] = ()) -> Tensor:
        return _answers(bench.surgeon, tokens[of], labels[of], rivals[of], where)

    together = torch.cat([found(part, where) for part in blocks(len(prompts), BLOCK)], dim=1)  # (1 + place, prompt, 2)
    alone = torch.cat([found(slice(n, n + 1)) for n in range(len(prompts))], dim=1)  # (1, prompt, 2)
    changes = torch.cat([together[1:], alone]) - together[0]  # (null, prompt, 2)
    names = [*(("together", *place) for place in where), ("alone", *UNTOUCHED)]
    rows = [
        {"prompt": number, **dict(zip(NULL, name, strict=True)), "logit": logit, "lead": lead}
        for name, lines in zip(names, changes.tolist(), strict=True)
        for number, (logit, lead) in zip(asked.prompts.ids, lines, strict=True)
    ]
    return FLOORS.evidence(pd.DataFrame(rows), {})


def places(surgeon: Surgeon, length: int) -> list[tuple[int, int]]:
    """Layers and tokens from which nothing is replayed: half of the prompt, nearly all of it, the readout alone."""
    middle = surgeon.anatomy.n_layers // 2
    return [(0, length // 2), (middle, 1), (middle, length - 1)]


def _answers(
    surgeon: Surgeon, tokens: Tensor, labels: Tensor, rivals: Tensor, where: Sequence[tuple[int, int]]
) -> Tensor:
    """The answers' logits and leads: untouched, then replayed from each place; (1 + place, prompt, 2)."""
    n = len(tokens)
    source = torch.arange(n).repeat(1 + len(where))  # (row,)
    edits = [
        Edit(
            "resid", layer, torch.tensor([NULL_SHIFT]), positions=[token], rows=range(n * row, n * row + n), mode="add"
        )
        for row, (layer, token) in enumerate(where, start=1)
    ]
    read = Read("logits", positions=[tokens.shape[1] - 1], take=answer_of(labels[source], rivals[source]))
    (found,) = surgeon.run(surgeon.record(tokens), edits, [read], source=source, allow_still=True)  # (row, 1, 3)
    return found[:, 0, [0, 2]].reshape(1 + len(where), n, 2).cpu()
