"""The noise floor: what an edit that is none does, measured where it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from claims.catalogue import claim
from rebinding.experiments import unedited
from rebinding.experiments.paths.summary import smallest_fall
from rebinding.experiments.tokens import BLOCK
from rebinding.experiments.unedited import (
    FLOOR_PROMPTS,
    IN_16_BITS,
    NULL_EDIT,
    _answers,
    floor_of,
    places,
    request_ability,
    request_floors,
    smallest_change,
)
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.procedure import builtin_procedure
from rebinding.study import circuits, gates
from rebinding.study.gates import Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts.gates import TIMES_THE_FLOOR, GateFailed, common_shift
from tests.close import allowance

COMPACT = claim("circuit.compact")
E_EMPTY = claim("circuit.group_e_empty")
MINIMAL = claim("circuit.minimal")
MOVES = claim("roles.b_moves_pointer")
SHIFT = 0.0625


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(load("planted:pointer@llama"))


def measured(bench: Workbench) -> Any:
    return bench.get(request_floors(bench.prompts, bench.prompts.design("published"), bench.loaded_model.dtype))


def test_floor_in_32_bits_is_rounding(bench: Workbench) -> None:
    """Far below the smallest thing that is compared with it, a published step of pruning."""
    evidence = measured(bench)
    assert len(evidence.rows) == FLOOR_PROMPTS * (len(places(bench.surgeon, 79)) + 1)
    request = request_ability(bench.prompts, bench.prompts.design("published"), FLOOR_PROMPTS)
    rounding = allowance(bench.get(request).rows["label_logit"].to_numpy())
    assert floor_of(evidence) <= rounding < builtin_procedure("published").circuit.prune_step / TIMES_THE_FLOOR


@pytest.mark.parametrize(
    ("score", "select", "is_compared"),
    [
        ("logit", "sure", True),
        ("logit", "negative", True),
        ("logit", "published", False),
        ("probability", "negative", False),
    ],
)
def test_the_weakest_head_is_compared_with_the_floor_where_logits_decide(
    score: Any, select: Any, is_compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the k lowest, and of a score that is no logit, none can be too weak to be told from nothing."""
    study, compared = Study.of(ModelUnderTest(parse_model("planted:pointer"), Settings(()))), []
    monkeypatch.setattr(circuits, "discover_circuit", lambda *_: "found")
    monkeypatch.setattr(circuits, "smallest_fall", lambda _: 0.5)
    monkeypatch.setattr(Gates, "check_noise_floor", lambda _, counts: compared.append(counts) or ())
    study._circuits.discovery(
        "controlled", replace(builtin_procedure("controlled").circuit, score=score, select=select)
    )
    assert compared == [0.5 if is_compared else None]


@pytest.mark.parametrize(("measure", "maximum"), [("replayed", 3 * SHIFT), ("alone", SHIFT)])
def test_noise_of_replay_and_batch_is_measured(
    bench: Workbench, measure: str, maximum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sixteenth of a logit on the answer if it is replayed from the first place, two from the next, three from the
    last; or one if it is alone. Against what is not replayed, and in company, the floor is the largest of that."""
    answers = _answers

    def shifted_logits(surgeon: Any, tokens: Any, labels: Any, rivals: Any, positions: Any) -> torch.Tensor:
        values = answers(surgeon, tokens, labels, rivals, positions)
        if measure == "alone":
            return values + SHIFT * (len(tokens) == 1)
        values[1:] += SHIFT * torch.arange(1, len(values))[:, None, None]  # (place, 1, 1)
        return values

    monkeypatch.setattr(unedited, "_answers", shifted_logits)
    assert floor_of(measured(bench)) == pytest.approx(maximum, rel=1e-3)  # rounding is 1e-5 of a logit


def test_floor_in_16_bits_uses_a_hundred_prompts_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt keeps its own numbers: here a replay says which word is right, and nothing else says anything."""

    def constant_answers(_surgeon: Any, tokens: Any, labels: Any, _rivals: Any, positions: Any) -> torch.Tensor:
        assert len(tokens) <= BLOCK
        values = torch.zeros(1 + len(positions), len(tokens), 2)  # (1 + place, prompt, 2)
        values[1:] = labels[:, None]
        return values

    bench = Workbench(load("planted:pointer@llama", dtype="bfloat16"))
    monkeypatch.setattr(unedited, "_answers", constant_answers)
    rows = measured(bench).rows
    prompts = bench.prompts
    encoded = prompts.encode(request_ability(prompts, prompts.design("published"), IN_16_BITS).prompts).prompts
    answers = prompts.answers(encoded)
    right = [int(tokens[index][0]) for tokens, index in zip(answers.tokens, answers.right, strict=True)]
    for (company, *_), changes in rows.groupby(NULL_EDIT):
        assert changes["logit"].tolist() == (right if company == "together" else [0.0] * IN_16_BITS)


def test_chance_makes_a_floor_of_eight_prompts_but_not_of_a_hundred() -> None:
    """A language model in bfloat16 is off by 0.15 logits from prompt to prompt, and in the mean by nothing."""
    counts, dice = MOVES.margin("dlogit"), np.random.default_rng(16)
    noise = [dice.normal(0, 0.15, (8, IN_16_BITS)) for _ in range(200)]  # four ways, of two measures
    small, large = (
        np.mean([counts > TIMES_THE_FLOOR * common_shift(changes[:, :n]) for changes in noise])
        for n in (FLOOR_PROMPTS, IN_16_BITS)
    )
    assert small < 0.1 < 0.99 < large


def test_chance_averages_out_and_a_shift_does_not() -> None:
    """Of the same size on each prompt: a sign that is drawn, and one that is fixed, in either direction."""
    random_signs = np.where(np.random.default_rng(0).random((1, 2000)) < 0.5, 1.0, -1.0)
    assert common_shift(random_signs) < 0.1  # 1.645 / sqrt(2000) = 0.037, and as much again for the mean itself
    assert common_shift(np.ones((1, 8))) == common_shift(-np.ones((1, 8))) == 1.0
    assert common_shift(np.stack([np.zeros(8), np.ones(8)])) == 1.0


def test_floor_is_compared_with_the_smallest_margin_in_logits() -> None:
    """Rows in logits, by their smallest margin; not shares, and not what takes the floor for its own boundary."""
    rows = (MOVES, claim("circuit.chain.B_q_A.controlled"), MINIMAL, claim("circuit.chain.B_q_A"), COMPACT)
    assert [smallest_change(row) for row in rows] == [0.25, 0.25, 0.5, None, None]
    assert MOVES.margin("dlogit") == 0.25


def controlled(study: Study) -> float:
    return study.conventions(claim("circuit.heads_found_again.B.controlled")).prune_step


def weakest(study: Study) -> float:
    """The smallest score, in logits, of a head that is kept."""
    (discovery,) = study.discoveries(claim("circuit.heads_found_again.B.controlled")).values()
    return smallest_fall(discovery)


@pytest.fixture(scope="module")
def pointer() -> Study:
    spec = parse_model("planted:pointer")
    return Study.of(ModelUnderTest(spec, Settings((spec,))))


CHOICES: dict[str, tuple[Callable[[Study], object], Callable[[Study], float]]] = {
    "discovery": (lambda study: study.discoveries(claim("circuit.heads_found_again.B.controlled")), weakest),
    "pruning": (lambda study: study.prunings(E_EMPTY.controlled()), controlled),
    "one head less": (lambda study: study.ablate_each_head(MINIMAL), lambda study: controlled(study) / 2),
}
"""What chooses heads by logits, and the logits that it goes by."""


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.slow
def test_heads_are_chosen_above_the_floor(name: str, pointer: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a choice goes by so many logits, a floor of nearly that over the stated multiple leaves it, and one of a
    little more makes it nobody's: then nothing is chosen, and the gate is named."""
    choose, counts = CHOICES[name]
    minimum = counts(pointer) / TIMES_THE_FLOOR
    monkeypatch.setattr(gates, "floor_of", lambda evidence: 0.99 * minimum)
    choose(pointer)
    monkeypatch.setattr(gates, "floor_of", lambda evidence: 1.01 * minimum)
    with pytest.raises(GateFailed, match="noise_floor"):
        choose(pointer)
