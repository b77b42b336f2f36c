"""The unedited model: its answers, its replays, and the noise floor, a bound on the mean change by null edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.evidence import cache_by_evidence
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import MEASURES, answer_of, full_model, prompt_blocks, token_batch
from rebinding.models.probe import Allowance, forward, in_float32, size
from rebinding.models.replays import NULL_SHIFT
from rebinding.paper.claim import Claim
from rebinding.surgery import Edit, Read, Surgeon, TorchSurgeon
from rebinding.surgery.recording import RecordedRun
from rebinding.task.designs import Design
from rebinding.task.prompts import AnswerSet
from rebinding.verdicts.gates import common_shift

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


ABILITY = Kind("ability", ("prompt", *MEASURES))
REPLAYS = Kind("replays", ("prompt", "layer", "token", "difference", "tolerance"))
FLOORS = Kind("floors", ("prompt", "company", "layer", "token", "logit", "lead"))
NULL_EDIT = ["company", "layer", "token"]
UNTOUCHED = (-1, -1)
"""The layer and the token in rows of prompts without a replay."""
REPLAYED_PROMPTS = 2
"""Few are enough: a wrong replay of a kind of layer is wrong on any prompt."""
FLOOR_PROMPTS, IN_16_BITS = 8, 100
"""The mean over n prompts is known to t(0.95, n - 1) / sqrt(n) of their spread: 0.67 for eight, which is enough if
rounding is 1e-5 of the effects that count, and 0.17 for a hundred, if it is half of them."""


@dataclass(frozen=True)
class Ability(OnPrompts):
    """The answers of the unedited model; `answers` gives the tokens of an object."""

    KIND: ClassVar[Kind] = ABILITY
    answers: AnswerSet = "continuation"


@dataclass(frozen=True)
class Replays(OnPrompts):
    """Unedited prompts, replayed from two places each."""

    KIND: ClassVar[Kind] = REPLAYS


@dataclass(frozen=True)
class Floors(OnPrompts):
    """Unedited prompts, together and alone, and replayed from several places without a change."""

    KIND: ClassVar[Kind] = FLOORS


def request_ability(prompts: Stories, design: Design, n: int, cut: int = 0) -> Ability:
    """Request the unedited model on evaluation prompts. Cut prompts have no "Answer:" before the answer, and a word
    counts in either form."""
    return Ability(prompts.draw(design, prompts.range_of(n), cut=cut), "exp2_aliases" if cut else "continuation")


def request_replays(prompts: Stories, design: Design) -> Replays:
    """Request replays of the first evaluation prompts."""
    return Replays(prompts.draw(design, prompts.range_of(REPLAYED_PROMPTS)))


def request_floors(prompts: Stories, design: Design, dtype: str) -> Floors:
    """Request the noise floor on the first evaluation prompts; on more in a dtype whose rounding makes a wide bound."""
    n = IN_16_BITS if dtype in ("bfloat16", "float16") else FLOOR_PROMPTS
    return Floors(prompts.draw(design, prompts.range_of(n)))


def measure_ability(bench: Workbench, request: Ability) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    answers = bench.prompts.answers(prompts, request.answers)
    full = full_model(bench.surgeon, prompts, answers, request.prompts.ids)
    return Evidence(request.KIND.name, full.rows.drop(columns="circuit"), full.settings)


def measure_replays(bench: Workbench, request: Replays) -> Evidence:
    """The error of replayed logits at the readout, and the allowance for rounding (`Allowance`), in float32."""
    model, anatomy = bench.loaded_model.model, bench.loaded_model.anatomy
    surgeon, allowance = TorchSurgeon(model, anatomy), Allowance.of_model(model, anatomy)
    rows: list[dict[str, float]] = []
    with in_float32(model, anatomy):
        for number, encoded in zip(request.prompts.ids, bench.prompts.encode(request.prompts).prompts, strict=True):
            tokens = token_batch([encoded])  # (1, token)
            expected = forward(model, anatomy, tokens).logits[0, -1]  # (vocabulary,)
            places = [(0, len(encoded) // 2), (anatomy.n_layers // 2, 1)]
            replayed = replay_unedited(surgeon, surgeon.record(tokens), places)  # (place, vocabulary)
            for (layer, token), logits in zip(places, replayed, strict=True):
                differences = {"difference": size(logits - expected), "tolerance": allowance.of(expected)}
                rows.append({"prompt": number, "layer": layer, "token": token, **differences})
    return REPLAYS.evidence(pd.DataFrame(rows), {})


def replay_unedited(surgeon: TorchSurgeon, recording: RecordedRun, places: Sequence[tuple[int, int]]) -> Tensor:
    """Logits (row, vocabulary) at the end of a prompt, a row run again from each (layer, token)."""
    edits = [
        Edit("resid", torch.tensor([NULL_SHIFT]), at=[token], layer=layer, rows=[row], mode="add")
        for row, (layer, token) in enumerate(places)
    ]
    read, source = Read("logits", at=[recording.length - 1]), torch.zeros(len(places), dtype=torch.long)
    (logits,) = surgeon.run(recording, edits, [read], source=source, allow_noop=True)
    return logits[:, 0]


def measure_floors(bench: Workbench, request: Floors) -> Evidence:
    """A row per prompt and null edit: changes from the logits of all prompts recorded together without a replay."""
    prompts = bench.prompts.encode(request.prompts).prompts
    tokens, answers = token_batch(prompts), bench.prompts.answers(prompts)
    objects = answers.tokens[..., 0]  # (prompt, object)
    right = torch.nn.functional.one_hot(answers.right, objects.shape[1]).bool()  # (prompt, object)
    labels, rivals = objects[right], objects[~right].reshape(len(prompts), -1)  # (prompt,), (prompt, other object)
    where = places(bench.surgeon, tokens.shape[1])

    def run(rows: slice, where: Sequence[tuple[int, int]] = ()) -> Tensor:
        return _answers(bench.surgeon, tokens[rows], labels[rows], rivals[rows], where)

    together = torch.cat(
        [run(rows, where) for rows in prompt_blocks(bench.surgeon, prompts)], dim=1
    )  # (1 + place, prompt, 2)
    alone = torch.cat([run(slice(n, n + 1)) for n in range(len(prompts))], dim=1)  # (1, prompt, 2)
    changes = torch.cat([together[1:], alone]) - together[0]  # (null, prompt, 2)
    names = [*(("together", *place) for place in where), ("alone", *UNTOUCHED)]
    rows = [
        {"prompt": number, **dict(zip(NULL_EDIT, name, strict=True)), "logit": logit, "lead": lead}
        for name, lines in zip(names, changes.tolist(), strict=True)
        for number, (logit, lead) in zip(request.prompts.ids, lines, strict=True)
    ]
    return FLOORS.evidence(pd.DataFrame(rows), {})


def places(surgeon: Surgeon, length: int) -> list[tuple[int, int]]:
    """The layers and tokens at which null replays begin: half of the prompt, nearly all of it, only the readout."""
    middle = surgeon.anatomy.n_layers // 2
    return [(0, length // 2), (middle, 1), (middle, length - 1)]


def _answers(
    surgeon: Surgeon, tokens: Tensor, labels: Tensor, rivals: Tensor, where: Sequence[tuple[int, int]]
) -> Tensor:
    """The answers' logits and leads, first without a replay, then replayed from each place: (1 + place, prompt, 2)."""
    null_edits = [
        [Edit("resid", torch.tensor([NULL_SHIFT]), at=[token], layer=layer, mode="add")] for layer, token in where
    ]
    read = Read("logits", at=[tokens.shape[1] - 1], reduce=answer_of(labels, rivals))
    (values,) = surgeon.sweep(surgeon.record(tokens), [[], *null_edits], [read], allow_noop=True)
    return values[:, :, 0, [0, 2]].cpu()


IN_LOGITS = ("margin", "logit", "dlogit")
"""Metrics that are logits, or differences of them."""


def smallest_change(claim: Claim) -> float | None:
    """The smallest change in logits that counts for a claim; None for a claim that is not about logits."""
    return min((claim.margin(metric) for metric in claim.metrics if metric in IN_LOGITS), default=None)


@cache_by_evidence
def floor_of(evidence: Evidence) -> float:
    """A bound on the mean change of null edits in logits: the largest over null edits."""
    return max(
        common_shift(evidence.rows.pivot(index=NULL_EDIT, columns="prompt", values=measure).to_numpy())
        for measure in ("logit", "lead")
    )
