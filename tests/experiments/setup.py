"""Small models, prompts, pairs and a circuit for the tests of experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import Condition, every_pair
from rebinding.experiments.binding.directions import Directions, measure_directions
from rebinding.experiments.binding.measure import run_binding
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search.measure import search_pairs
from rebinding.experiments.search.pairs import SearchPairs
from rebinding.experiments.search.request import NOISE
from rebinding.experiments.tokens import Answers
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.models import LoadedModel
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.planted import build
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Surgeon, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.designs import Design, DesignName, design
from rebinding.task.prompts import Encoded, Encoder, Prompt
from tests.families.models import Family, tiny

SLOTS = 3


@dataclass(frozen=True)
class Bench:
    """A surgeon on a model, its tokenizer, and the heads under test."""

    surgeon: Surgeon
    tokenizer: Any
    heads: tuple[Head, ...]
    groups: Any = None

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer)

    def prompts(self, name: DesignName, n: int) -> list[Encoded]:
        stories = design(name, split="evaluation") if name == "counterbalanced" else design(name)
        return self.encoder.encode(stories.prompt(number) for number in range(n))

    def directions(self, name: DesignName, n: int) -> Directions:
        stories = design(name, split="directions") if name == "counterbalanced" else design(name)
        prompts = {
            slot: self.encoder.encode(stories.direction(10_000 + number, slot) for number in range(n))
            for slot in range(SLOTS)
        }
        return measure_directions(self.surgeon, prompts, self.heads)

    def binding(self, name: DesignName, conditions: Sequence[Condition], *, n: int = 8, **options: Any) -> Evidence:
        """Published: from slot 1 to slot 0; counterbalanced: all ordered pairs."""
        pairs = every_pair(SLOTS) if name == "counterbalanced" else ((1, 0),)
        settings: dict[str, Any] = {"ids": range(n), "token": self.encoder.answer_token}
        settings |= {"pairs": pairs, "conditions": conditions} | options
        directions = settings.pop("directions", None) or self.directions(name, n)
        return run_binding(self.surgeon, self.prompts(name, n), directions, self.heads, **settings)


@cache
def planted(mechanism: str, architecture: str) -> Bench:
    """A planted model, with the heads that it calls group B."""
    plant = build(mechanism, architecture)
    groups: dict[str, list[Head]] = {}
    for head in plant.circuit:
        groups.setdefault(head.group, []).append((head.layer, head.head))
    surgeon = TorchSurgeon(plant.model, derive(plant.model))
    return Bench(surgeon, plant.tokenizer, tuple(groups["B"]) if "B" in groups else (), groups)


@cache
def random_model(family: Family, *, oracle: bool = False) -> Bench:
    """A random model over the planted models' words, with windows that reach back to the context; the same every time.

    Two of the heads share a KV head, and they stand in two layers. `oracle` puts it under the nnsight surgeon.
    """
    tokenizer, windows = build_tokenizer(), {} if family == "llama" else {"sliding_window": 60}
    model = tiny(family, vocab_size=len(tokenizer), max_position_embeddings=256, **windows)
    surgeon: Surgeon = (NNsightSurgeon if oracle else TorchSurgeon)(model, derive(model))
    return Bench(surgeon, tokenizer, ((1, 0), (1, 2), (2, 4)))


@cache
def sentence_piece_model() -> LoadedModel:
    """A random model that reads real prompts with the tokenizer of the reference pack, as a bench takes it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "reference" / "llama-tiny" / "model")
    model = tiny("llama", vocab_size=len(tokenizer), max_position_embeddings=128)
    cpu = torch.device("cpu")
    return LoadedModel(
        "small", lambda: model, tokenizer, derive(model), "raw", "float32", cpu, known_fingerprint="small"
    )


@cache
def small_encoder() -> Encoder:
    return sentence_piece_model().encoder()


def small_surgeon() -> TorchSurgeon:
    return TorchSurgeon(sentence_piece_model().model, sentence_piece_model().anatomy)


def published_design(**options: Any) -> Design:
    """In words that this tokenizer has."""
    return design("published", tokenizer=sentence_piece_model().tokenizer, **options)


def fake_prompts(prompts: Tensor, roles: Mapping[str, int]) -> list[Encoded]:
    """Random tokens with roles at fixed places; the story is never looked at."""
    story = Story((Contains("A", "egg"), Contains("B", "fan")), (Swap("B", "A"),))
    return [Encoded("", tuple(row.tolist()), dict(roles), prompt=Prompt(story, "A")) for row in prompts]


def random_pairs(originals: Tensor, *, differing: Sequence[int]) -> list[TracedPair]:
    """Pairs of token rows that differ exactly in `differing`, with candidates drawn at random."""
    dice, roles = torch.Generator().manual_seed(0), {"readout": originals.shape[1] - 1}
    changed = originals.clone()
    changed[:, list(differing)] += 1
    words = [torch.randperm(40, generator=dice)[:4].tolist() for _ in originals]
    sides = zip(fake_prompts(originals, roles), fake_prompts(changed, roles), words, strict=True)
    return [
        TracedPair(number, original, counterfactual, tuple(objects[:3]), number % 3, objects[3])
        for number, (original, counterfactual, objects) in enumerate(sides)
    ]


ROLES = {"context_partner": 4, "swap_partner": 7, "question_box": 9, "readout": 12}
HEADS = tuple(product(range(4), range(6)))
ANSWERS = Answers(torch.tensor([[[5, 6], [7, 7], [8, 9]]]).repeat(3, 1, 1), torch.tensor([0, 1, 2]))
CIRCUIT = Circuit(
    (
        CircuitHead("A", 3, 2, "readout"),
        CircuitHead("B", 2, 5, "readout"),
        CircuitHead("C", 1, 0, "question_box"),
        CircuitHead("D", 0, 4, "swap_partner"),
        CircuitHead("E", 0, 3, "context_partner"),
    )
)


def noise_pairs(encoder: Encoder, ids: Sequence[int]) -> SearchPairs:
    """Pairs of a search: prompts of the counterbalanced design and the noise that belongs to them."""
    prompts = Stories(encoder)
    pairs = prompts.draw(prompts.design("counterbalanced"), ids, ("noise", NOISE))
    return search_pairs(encoder, prompts.encode(pairs))
