"""Measure the unedited model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.answers import full_model
from rebinding.experiments.tokens import BLOCK, answer_of, blocks, token_batch
from rebinding.experiments.unedited.request import FLOORS, NULL_EDIT, REPLAYS, UNTOUCHED, Ability, Floors, Replays
from rebinding.experiments.workbench import Workbench, measures
from rebinding.models.probe import forward
from rebinding.models.replays import NULL_SHIFT
from rebinding.models.rounding import Allowance, in_float32, size
from rebinding.surgery import Edit, Read, Surgeon, TorchSurgeon
from rebinding.surgery.recording import Recording


@measures(Ability)
def measure_ability(bench: Workbench, request: Ability) -> Evidence:
    prompts = bench.prompts.drawn(request.prompts).prompts
    answers = bench.prompts.answers(prompts, request.answers)
    found = full_model(bench.surgeon, prompts, answers, request.prompts.ids)
    return Evidence(request.KIND.name, found.rows.drop(columns="circuit"), found.settings)


@measures(Replays)
def measure_replays(bench: Workbench, request: Replays) -> Evidence:
    """By how much the logits at the readout are off, and what rounding allows (`Allowance`), in float32."""
    model, anatomy = bench.loaded_model.model, bench.loaded_model.anatomy
    surgeon, allowance = TorchSurgeon(model, anatomy), Allowance.of_model(model, anatomy)
    rows: list[dict[str, float]] = []
    with in_float32(model, anatomy):
        for number, one in zip(request.prompts.ids, bench.prompts.drawn(request.prompts).prompts, strict=True):
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
    (logits,) = surgeon.run(recording, edits, [read], source=source, allow_noop=True)
    return logits[:, 0]


@measures(Floors)
def measure_floors(bench: Workbench, request: Floors) -> Evidence:
    """A row per prompt and null edit: changes against the prompts as recorded together, nothing replayed."""
    prompts = bench.prompts.drawn(request.prompts).prompts
    tokens, answers = token_batch(prompts), bench.prompts.answers(prompts)
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
        {"prompt": number, **dict(zip(NULL_EDIT, name, strict=True)), "logit": logit, "lead": lead}
        for name, lines in zip(names, changes.tolist(), strict=True)
        for number, (logit, lead) in zip(request.prompts.ids, lines, strict=True)
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
    (found,) = surgeon.run(surgeon.record(tokens), edits, [read], source=source, allow_noop=True)  # (row, 1, 3)
    return found[:, 0, [0, 2]].reshape(1 + len(where), n, 2).cpu()
