"""Measure the unedited model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.answers import full_model
from rebinding.experiments.tokens import answer_of, prompt_blocks, token_batch
from rebinding.experiments.unedited.request import FLOORS, NULL_EDIT, REPLAYS, UNTOUCHED, Ability, Floors, Replays
from rebinding.experiments.workbench import Workbench, measures
from rebinding.models.probe import forward
from rebinding.models.replays import NULL_SHIFT
from rebinding.models.rounding import Allowance, in_float32, size
from rebinding.surgery import Edit, Read, Surgeon, TorchSurgeon
from rebinding.surgery.recording import Recording
from rebinding.surgery.sweep import sweep


@measures(Ability)
def measure_ability(bench: Workbench, request: Ability) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    answers = bench.prompts.answers(prompts, request.answers)
    full = full_model(bench.surgeon, prompts, answers, request.prompts.ids)
    return Evidence(request.KIND.name, full.rows.drop(columns="circuit"), full.settings)


@measures(Replays)
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


def replay_unedited(surgeon: TorchSurgeon, recording: Recording, places: Sequence[tuple[int, int]]) -> Tensor:
    """Logits (row, vocabulary) at the end of a prompt, a row run again from each (layer, token)."""
    edits = [
        Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[token], rows=[row], mode="add")
        for row, (layer, token) in enumerate(places)
    ]
    read, source = Read("logits", positions=[recording.length - 1]), torch.zeros(len(places), dtype=torch.long)
    (logits,) = surgeon.run(recording, edits, [read], source=source, allow_noop=True)
    return logits[:, 0]


@measures(Floors)
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
        [Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[token], mode="add")] for layer, token in where
    ]
    read = Read("logits", positions=[tokens.shape[1] - 1], reduce=answer_of(labels, rivals))
    (values,) = sweep(surgeon, surgeon.record(tokens), [[], *null_edits], [read], allow_noop=True)
    return values[:, :, 0, [0, 2]].cpu()
