"""On a planted model discovery has a right answer, ablation a known effect, published choices known blind spots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from rebinding.experiments.circuit.ablation import Answers, evaluate, full_model, mean_z
from rebinding.experiments.circuit.discovery import discover
from rebinding.experiments.circuit.paths import PAPER, PAPER_LITERAL, PathSettings, Stage
from rebinding.experiments.circuit.pruning import prune_published
from rebinding.experiments.circuit.random_circuits import draw_circuits
from rebinding.paper.circuit import Circuit
from rebinding.planted import Plant, build
from rebinding.study.circuit import with_labels
from rebinding.study.drawing import draw
from rebinding.surgery import TorchSurgeon, derive
from rebinding.verbs.discover import kept_heads
from rebinding.world.designs import design
from rebinding.world.prompts import Encoded, Encoder

ARCHITECTURES = ("llama", "gemma2", "gemma3")


@cache
def plant(architecture: str) -> Plant:
    """The plant, built once."""
    return build("pointer", architecture)


@cache
def surgeon(architecture: str) -> TorchSurgeon:
    """A surgeon on it."""
    model = plant(architecture).model
    return TorchSurgeon(model, derive(model))


def planted_groups(architecture: str) -> dict[str, list[tuple[int, int]]]:
    """Group -> its heads, as planted."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for head in plant(architecture).circuit:
        groups.setdefault(head.group, []).append((head.layer, head.head))
    return {name: sorted(heads) for name, heads in groups.items()}


def found_groups(
    architecture: str, name: str, noise: str, stages: Sequence[Stage] = PAPER, *, frozen: str = "all", n: int = 36
) -> dict[str, list[tuple[int, int]]]:
    """Group -> heads, as discovered with the plant's own k."""
    sizes = ",".join(str(len(planted_groups(architecture)[stage.group])) for stage in stages)
    encoder = Encoder(plant(architecture).tokenizer)
    scene = with_labels(encoder, draw(encoder, design(name), range(n), ("noise", noise)))
    settings = PathSettings(frozen, "head")  # type: ignore[arg-type]  # a test parameter
    found = discover(surgeon(architecture), scene, kept_heads(tuple(stages), sizes), settings=settings)
    return {name: sorted(found.circuit.group(name)) for name in found.circuit.groups}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_discovery_returns_the_planted_heads(architecture: str) -> None:
    """All five groups, head by head, decoys never, with k far above the plant's neither.

    Planted heads move the answer by half a logit at least in the prompts of their slot, decoys by 1e-4 at most. A head
    of one slot acts in a third of the prompts or fewer, which takes about 30 of them to be sure of.
    """
    assert found_groups(architecture, "partner_second", "independent") == planted_groups(architecture)
    encoder = Encoder(plant(architecture).tokenizer)
    scene = with_labels(encoder, draw(encoder, design("partner_second"), range(36), ("noise", "independent")))
    wide = discover(surgeon(architecture), scene, PAPER).circuit
    assert {(head.layer, head.head) for head in wide.heads} <= {
        pair for one in planted_groups(architecture).values() for pair in one
    }


def test_published_noise_is_blind_to_some_groups() -> None:
    """Rotation keeps the answer, so no head can be seen to lose it; fresh words keep the slots, and so do objects dealt
    anew, the paper's own sentence: only A is seen."""
    assert found_groups("llama", "partner_second", "rotation") == {}
    assert found_groups("llama", "published", "rotation") == {}
    for kind in ("fresh", "objects"):
        assert found_groups("llama", "published", kind) == {"A": planted_groups("llama")["A"]}


def test_published_order_leaves_d_empty() -> None:
    """A partner named first cannot know whom it is swapped with: nothing is sent from there, and D and E are empty."""
    found = found_groups("llama", "published", "independent")
    assert {name: found[name] for name in "ABC"} == {name: planted_groups("llama")[name] for name in "ABC"}
    assert set(found) == {"A", "B", "C"}


def test_literal_d_is_null_when_frozen() -> None:
    """C's query at the question box cannot hear the swap label while every other head is frozen."""
    found = found_groups("llama", "partner_second", "independent", PAPER_LITERAL)
    assert "D" not in found
    assert found["C"] == planted_groups("llama")["C"]


@cache
def encoded(name: str, start: int, n: int) -> tuple[tuple[int, ...], list[Encoded]]:
    """Prompts in which both boxes of the swap are asked about, never the bystander, and their ids."""
    drawn = design(name)
    every = list(
        zip(
            range(start, start + n),
            Encoder(plant("llama").tokenizer).encode(map(drawn.prompt, range(start, start + n))),
            strict=True,
        )
    )
    kept = [(number, one) for number, one in every if "swap_partner" in one.roles]
    return tuple(number for number, _ in kept), [one for _, one in kept]


def answers(prompts: Sequence[Encoded]) -> Answers:
    """The objects in the boxes at the end, and which is asked for."""
    encoder = Encoder(plant("llama").tokenizer)
    held = [list(one.prompt.story.state().values()) for one in prompts]
    tokens = torch.tensor([[[encoder.answer_token(word)] for word in words] for words in held])
    return Answers(
        tokens, torch.tensor([words.index(one.prompt.answer) for words, one in zip(held, prompts, strict=True)])
    )


def measured(architecture: str, mean_set: str, name: str, circuits: dict[str, Circuit]) -> dict[str, float]:
    """Candidate accuracy of circuits, and of the full model."""
    own = surgeon(architecture)
    means = mean_z(own, encoded(mean_set, 0, 96)[1])
    ids, prompts = encoded(name, 300, 36)
    rows = evaluate(own, prompts, answers(prompts), ids, circuits, means, mean_set=mean_set).rows
    full = full_model(own, prompts, answers(prompts), ids).rows["hit"].mean()
    return {"full": float(full)} | {name: float(value) for name, value in rows.groupby("circuit")["hit"].mean().items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_planted_circuit_does_the_task_alone(architecture: str) -> None:
    """Under counterbalanced means: the circuit is as good as the model, no group but E can go, chance without any."""
    circuit = Circuit(plant(architecture).circuit)
    without = {name: circuit.without(circuit.groups[name]) for name in "ABCDE"}
    found = measured(
        architecture, "counterbalanced", "counterbalanced", {"circuit": circuit, "empty": Circuit(()), **without}
    )
    assert found["full"] == found["circuit"] == 1.0
    assert found["E"] == 1.0, "what E writes at a slot's tokens is in their means: it lives on in the residual"
    chance = 1 / 3 + 4 * (2 / 9 / 24) ** 0.5  # four standard deviations over the prompts that ask for a swapped box
    assert max(found[name] for name in ("empty", "A", "B", "C", "D")) <= chance


def test_random_circuits_without_circuit_heads_are_at_chance() -> None:
    """Decoys do nothing; drawn with the circuit's own heads, a random circuit is better than that."""
    circuit, anatomy = Circuit(plant("llama").circuit), surgeon("llama").anatomy
    apart = draw_circuits(circuit, anatomy.n_layers, anatomy.n_heads, draws=20, exclude=True)
    drawn = draw_circuits(circuit, anatomy.n_layers, anatomy.n_heads, draws=20)
    named = {"empty": Circuit(())} | {f"apart {n}": one for n, one in enumerate(apart)}
    named |= {f"any {n}": one for n, one in enumerate(drawn)}
    found = measured("llama", "published", "published", named)
    assert {found[name] for name in found if name.startswith("apart")} == {found["empty"]}
    assert max(found[name] for name in found if name.startswith("any")) > found["empty"]


def pruned(mean_set: str, name: str) -> set[str]:
    """The groups that the published walk keeps."""
    own, circuit = surgeon("llama"), Circuit(plant("llama").circuit)
    means = mean_z(own, encoded(mean_set, 0, 96)[1])
    ids, prompts = encoded(name, 300, 18)

    def score(circuits: Sequence[Circuit]) -> list[float]:
        rows = evaluate(
            own,
            prompts,
            answers(prompts),
            ids,
            {str(n): one for n, one in enumerate(circuits)},
            means,
            mean_set=mean_set,
        ).rows
        return [float(rows.loc[rows["circuit"] == str(n), "label_logit"].mean()) for n in range(len(circuits))]

    return set(prune_published(circuit, score).circuit.groups)


def test_pruning_under_two_means() -> None:
    """Counterbalanced: A to D stay. Published: the mean says "go to slot 1", and who finds the slot looks idle."""
    assert pruned("counterbalanced", "counterbalanced") == {"A", "B", "C", "D"}
    assert pruned("published", "published") == {"A", "B"}
