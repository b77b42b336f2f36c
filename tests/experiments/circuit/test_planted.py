"""On a planted model the published choices of noise, order of naming, stage D and means have known blind spots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from rebinding.cli.discover import with_top_k
from rebinding.experiments.ablation import evaluate, mean_z
from rebinding.experiments.circuit.measure import walk
from rebinding.experiments.paths.measure import NoisePairs, discover, to_noise_pairs
from rebinding.experiments.paths.request import PAPER, PAPER_LITERAL, PathSettings, Stage
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import Answers
from rebinding.paper.circuit import Circuit
from rebinding.planted import Plant, build
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder


@cache
def plant() -> Plant:
    """The plant, built once."""
    return build("pointer")


@cache
def surgeon() -> TorchSurgeon:
    """A surgeon on it."""
    model = plant().model
    return TorchSurgeon(model, derive(model))


def planted_groups() -> dict[str, list[tuple[int, int]]]:
    """Group -> its heads, as planted."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for head in plant().circuit:
        groups.setdefault(head.group, []).append((head.layer, head.head))
    return {name: sorted(heads) for name, heads in groups.items()}


def noise_pairs(name: str, noise: str, n: int) -> NoisePairs:
    """The first clean prompts of a design and their noise prompts."""
    prompts = Stories(Encoder(plant().tokenizer))
    return to_noise_pairs(prompts.encoder, prompts.encode(prompts.draw(design(name), range(n), ("noise", noise))))


def find_groups(
    name: str, noise: str, stages: Sequence[Stage] = PAPER, *, frozen: str = "all", n: int = 36
) -> dict[str, list[tuple[int, int]]]:
    """Group -> heads, as discovered with the plant's own k."""
    sizes = ",".join(str(len(planted_groups()[stage.group])) for stage in stages)
    scene = noise_pairs(name, noise, n)
    settings = PathSettings(frozen, "head")  # type: ignore[arg-type]  # a test parameter
    result = discover(surgeon(), scene, with_top_k(tuple(stages), sizes), settings=settings)
    return {name: sorted(result.circuit.group(name)) for name in result.circuit.groups}


def test_published_noise_is_blind_to_some_groups() -> None:
    """Rotation keeps the answer, so no head can be seen to lose it; fresh words keep the slots, and so do objects dealt
    anew, the paper's own sentence: only A is seen."""
    assert find_groups("partner_second", "rotation") == {}
    assert find_groups("published", "rotation") == {}
    for kind in ("fresh", "objects"):
        assert find_groups("published", kind) == {"A": planted_groups()["A"]}


@pytest.mark.slow
def test_published_order_leaves_d_empty() -> None:
    """A partner named first cannot know whom it is swapped with: nothing is sent from there, and D and E are empty."""
    result = find_groups("published", "independent")
    assert {name: result[name] for name in "ABC"} == {name: planted_groups()[name] for name in "ABC"}
    assert set(result) == {"A", "B", "C"}


def test_literal_d_is_null_when_frozen() -> None:
    """C's query at the question box cannot hear the swap label while every other head is frozen."""
    result = find_groups("partner_second", "independent", PAPER_LITERAL)
    assert "D" not in result
    assert result["C"] == planted_groups()["C"]


@cache
def encoded(name: str, start: int, n: int) -> tuple[tuple[int, ...], list[Encoded]]:
    """Prompts in which both boxes of the swap are asked about, never the bystander, and their ids."""
    stories = design(name)
    numbered = list(
        zip(
            range(start, start + n),
            Encoder(plant().tokenizer).encode(map(stories.prompt, range(start, start + n))),
            strict=True,
        )
    )
    swapped = [(number, encoded) for number, encoded in numbered if "swap_partner" in encoded.roles]
    return tuple(number for number, _ in swapped), [encoded for _, encoded in swapped]


def answers(prompts: Sequence[Encoded]) -> Answers:
    """The objects in the boxes at the end, and which is asked for."""
    encoder = Encoder(plant().tokenizer)
    contents = [list(encoded.prompt.story.state().values()) for encoded in prompts]
    tokens = torch.tensor([[[encoder.answer_token(word)] for word in words] for words in contents])
    return Answers(
        tokens,
        torch.tensor([words.index(encoded.prompt.answer) for words, encoded in zip(contents, prompts, strict=True)]),
    )


def pruned(mean_set: str, name: str) -> set[str]:
    """The groups that the published walk keeps."""
    own_surgeon, circuit = surgeon(), Circuit(plant().circuit)
    means = mean_z(own_surgeon, encoded(mean_set, 0, 96)[1])
    ids, prompts = encoded(name, 300, 18)

    def score(circuits: Sequence[Circuit]) -> list[float]:
        rows = evaluate(
            own_surgeon,
            prompts,
            answers(prompts),
            ids,
            {str(n): circuit for n, circuit in enumerate(circuits)},
            means,
            mean_set=mean_set,
        ).rows
        return [float(rows.loc[rows["circuit"] == str(n), "label_logit"].mean()) for n in range(len(circuits))]

    (pruned,) = walk([circuit], score)
    return set(pruned.circuit.groups)


@pytest.mark.slow
def test_pruning_under_two_means() -> None:
    """Counterbalanced: A to D stay. Published: the mean says "go to slot 1", and who finds the slot looks idle."""
    assert pruned("counterbalanced", "counterbalanced") == {"A", "B", "C", "D"}
    assert pruned("published", "published") == {"A", "B"}
