"""A tiny model, random prompts with roles at fixed places, and a circuit, for the tests of section 4.1."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.experiments.ablation import mean_z
from rebinding.experiments.tokens import Answers
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery import Anatomy, TorchSurgeon, derive
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Prompt
from tests.families.models import Family, tiny, tokens

ROLES = {"context_partner": 4, "swap_partner": 7, "question_box": 9, "readout": 12}
HEADS = tuple(product(range(4), range(6)))
ANSWERS = Answers(torch.tensor([[[5, 6], [7, 7], [8, 9]]]).repeat(3, 1, 1), torch.tensor([0, 1, 2]))
IDS = (10, 11, 12)
CIRCUIT = Circuit(
    (
        CircuitHead("A", 3, 2, "readout"),
        CircuitHead("B", 2, 5, "readout"),
        CircuitHead("C", 1, 0, "question_box"),
        CircuitHead("D", 0, 4, "swap_partner"),
        CircuitHead("E", 0, 3, "context_partner"),
    )
)


def fake_prompts(prompts: Tensor, roles: dict[str, int]) -> list[Encoded]:
    """Random tokens with roles at fixed places; the story is never looked at."""
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    return [Encoded("", tuple(row.tolist()), dict(roles), prompt=Prompt(story, "A")) for row in prompts]


def setting(family: Family) -> tuple[TorchSurgeon, list[Encoded], list[Tensor]]:
    """A tiny model, three prompts, and means over them and two others."""
    model = tiny(family)
    surgeon = TorchSurgeon(model, derive(model))
    prompts = fake_prompts(tokens(family, n=5), ROLES)
    return surgeon, prompts[:3], mean_z(surgeon, prompts, block=2)


def name_every_token(prompts: list[Encoded]) -> None:
    """Give every token a role of its own."""
    for encoded in prompts:
        encoded.roles.update({f"token {place}": place for place in range(len(encoded))})


def with_repeated_keys(model: PreTrainedModel, family: Family, anatomy: Anatomy, **shape: Any) -> PreTrainedModel:
    """The same model with one KV head per query head, on the library's own eager attention."""
    single = tiny(family, num_key_value_heads=anatomy.n_heads, **shape)
    state = dict(model.state_dict())
    for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
        spread = state[name].unflatten(0, (-1, anatomy.parts[0].head_dim)).repeat_interleave(anatomy.parts[0].group, 0)
        state[name] = spread.flatten(0, 1)
    single.load_state_dict(state)
    return single
