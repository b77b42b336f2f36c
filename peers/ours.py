"""The same stages by this project, and the prompts that all of them get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from peers.stages import Task
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, PathSettings
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import Group
from rebinding.surgery import TorchSurgeon
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Prompt

STAGES = {stage.group: stage for stage in PAPER}
SETTINGS = PathSettings(frozen="none", scope="head")


def make_pairs(surgeon: TorchSurgeon, *, prompts: int, tokens: int, vocabulary: int) -> NoisePairs:
    """Random tokens, whose last one is the readout; nobody looks at the story."""
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    dice = torch.Generator().manual_seed(1)
    tokens_of_runs = torch.randint(0, vocabulary, (2, prompts, tokens), generator=dice).tolist()  # (run, prompt, token)
    clean, noise = (
        tuple(Encoded("", tuple(line), {"readout": tokens - 1}, prompt=Prompt(story, "A")) for line in lines)
        for lines in tokens_of_runs
    )
    rows = torch.arange(prompts)
    scene = NoisePairs(tuple(range(prompts)), clean, noise, rows, rows[:, None])
    scene.block(surgeon, STAGES["A"], slice(0, prompts))  # recorded, as for every stage after the first
    return scene


def make_task(surgeon: TorchSurgeon, scene: NoisePairs) -> Task:
    """The same for other libraries, which are given the noise prompts' values as we recorded them."""
    block = scene.block(surgeon, STAGES["A"], slice(0, len(scene.ids)))
    return Task(
        torch.tensor([prompt.ids for prompt in scene.clean]), [z[:, :, 0] for z in block.noise_z.values()], scene.labels
    )


def measure_effects(
    surgeon: TorchSurgeon, scene: NoisePairs, group: Group, senders: Sequence[Head] | None, receivers: Sequence[Head]
) -> Tensor:
    """The answers' logits after each sender's patch, (sender, prompt); all heads, if none are named."""
    settings = replace(SETTINGS, block=len(scene.ids))
    rows = score_stage(surgeon, scene, STAGES[group], receivers, senders=senders, settings=settings).rows
    table = rows.pivot(index=["layer", "head"], columns="prompt", values="logit_patch").sort_index()
    return torch.tensor(table.to_numpy())
