"""What the conditions add, and which of them are candidates for differences between the text and the code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rebinding.experiments.binding.conditions import (
    K_BOX,
    MATCHED_RANDOM,
    POOLED,
    POOLED_KEYS,
    PUBLISHED_RANDOM,
    QK,
    QK_SOURCE,
    SOURCE,
    TABLE,
    Condition,
    RowConditions,
    Shift,
    row_conditions,
    shift_of,
)
from rebinding.experiments.binding.directions import (
    KINDS,
    Directions,
    measure_directions,
    published_noise,
    shared_keys,
)
from rebinding.experiments.binding.request import VARIATIONS, request_shifts
from rebinding.experiments.prompts import Stories
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import BY_PROCEDURE, CHOICE_NAMES, OPEN, RELEASED, BindingConventions, builtin_procedure
from rebinding.surgery import SurgeryError
from tests.experiments.binding.setup import random_model

PUBLISHED, CONTROLLED = (builtin_procedure(name).binding for name in ("published", "controlled"))
SOURCE_CHOICE, BOTH_CHOICE = CHOICE_NAMES["source"], CHOICE_NAMES["both"]
HEADS = ((1, 0), (1, 2), (2, 4))
"""The first two share a KV head in the random models, where three query heads do."""

ANATOMY = random_model("llama").surgeon.anatomy
DICE = torch.Generator().manual_seed(5)
DIRECTIONS = Directions(HEADS, torch.randn(3, 3, 10, generator=DICE), torch.randn(len(KINDS), 3, 3, 10, generator=DICE))
FROM, TARGET = torch.tensor([1, 0, 2]), torch.tensor([0, 2, 1])


def shift(condition: Condition, scope: str = "head", draws: int = 4) -> Shift:
    return shift_of(condition, DIRECTIONS, ANATOMY, FROM, TARGET, scope=scope, draws=draws, seed=3)


def test_real_shifts_go_from_i_to_j() -> None:
    """Queries gain what slot j has more than i; keys of j become like those of i, and the other way round."""
    result = shift(QK)
    for case, (i, j) in enumerate(zip(FROM.tolist(), TARGET.tolist(), strict=True)):
        torch.testing.assert_close(result.q[0, case], DIRECTIONS.q[j] - DIRECTIONS.q[i])
        keys = DIRECTIONS.k.mean(0)
        torch.testing.assert_close(result.at_j[0, case], keys[i] - keys[j])
        torch.testing.assert_close(result.at_i[0, case], keys[j] - keys[i])
    box = shift(K_BOX).at_j[0, 0]
    torch.testing.assert_close(box, DIRECTIONS.k[KINDS.index("box"), 1] - DIRECTIONS.k[KINDS.index("box"), 0])
    pooled = shift(POOLED_KEYS[0])
    torch.testing.assert_close((pooled.at_j, pooled.at_i), (shift(QK).at_j, shift(QK).at_i))
    assert shift(QK_SOURCE).at_j is None
    torch.testing.assert_close(shift(QK_SOURCE).at_i, shift(QK).at_i)
    assert shift(TABLE[0]).at_i is None


def test_published_noise_has_each_heads_norm() -> None:
    """Per head and case the norm of the real shift; independent vectors at the two slots, the same for all prompts. The
    draws follow (layer, head), in whatever order heads are listed."""
    real, noise = shift(QK), shift(PUBLISHED_RANDOM[2])
    for name in ("q", "at_j", "at_i"):
        torch.testing.assert_close(getattr(noise, name).norm(dim=-1), getattr(real, name).norm(dim=-1))
        unit = torch.nn.functional.normalize(getattr(noise, name), dim=-1)
        torch.testing.assert_close(unit[0, 0], unit[0, 1])
    cosine = torch.nn.functional.cosine_similarity(noise.at_j, noise.at_i, dim=-1)
    assert cosine.abs().max() < 0.95
    reversed_heads = published_noise(HEADS[::-1], 10, 1006)
    torch.testing.assert_close(reversed_heads.flip(0), published_noise(HEADS, 10, 1006))


@pytest.mark.parametrize("scope", ["group", "head"])
def test_matched_noise_keeps_the_norm_of_the_edit_that_acts(scope: str) -> None:
    """After averaging over the heads that share a key, where the published vectors lose a part of their norm."""
    real, matched, published = shift(QK), shift(MATCHED_RANDOM[2], scope), shift(PUBLISHED_RANDOM[2])

    def acting(vectors: torch.Tensor) -> torch.Tensor:
        assert shared_keys(ANATOMY, HEADS) == {(1, 0): [0, 1], (2, 1): [2]}
        return vectors.flatten(0, 1)[:, :2].mean(1).norm(dim=-1)

    if scope == "group":
        torch.testing.assert_close(acting(matched.at_j), acting(real.at_j).repeat(4))
        assert not torch.allclose(acting(published.at_j), acting(real.at_j), rtol=0.01)
    else:
        torch.testing.assert_close(matched.at_j.norm(dim=-1), real.at_j.norm(dim=-1).expand(4, -1, -1))
    torch.testing.assert_close(matched.at_i, -matched.at_j)
    torch.testing.assert_close(matched.q.norm(dim=-1), real.q.norm(dim=-1).expand(4, -1, -1))
    assert not torch.allclose(matched.q[0], matched.q[1])


@pytest.mark.parametrize("slot", ["at_j", "at_i"])
def test_relative_change_is_the_largest_added_number(slot: str) -> None:
    """The first two heads have one key: what is meant for them cancels there, and each sees its own by itself."""
    vectors = torch.zeros(2, 3, len(HEADS), 10)  # (draw, case, head, head_dim)
    vectors[0, 1, 0, 4], vectors[0, 1, 1, 4] = 0.6, -0.6
    vectors[1, 2, 1, 7] = -0.8
    shifted = replace(Shift(None, None, None), **{slot: vectors})
    largest = float(DIRECTIONS.k.abs().max())
    by_head, by_group = (
        shifted.relative_change(DIRECTIONS, ANATOMY, HEADS, scope) * largest for scope in ("head", "group")
    )
    torch.testing.assert_close(by_head, torch.tensor([[0.0, 0.6, 0.0], [0.0, 0.0, 0.8]]))
    torch.testing.assert_close(by_group, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.4]]))
    query = Shift(vectors, None, None).relative_change(DIRECTIONS, ANATOMY, HEADS, "group")
    torch.testing.assert_close(query * float(DIRECTIONS.q.abs().max()), by_head)  # nobody shares a query


def test_invalid_conditions_are_refused() -> None:
    with pytest.raises(SurgeryError, match="edits nothing"):
        Condition("none")
    invalid: Any = ((), ("box", "box"), ("box", "boxes"))
    for kinds in invalid:
        with pytest.raises(SurgeryError, match="one or both"):
            Condition("k", keys="both", kinds=kinds)
    bench = random_model("llama")
    with pytest.raises(SurgeryError, match="answer in slot 1, and no pair starts from there"):
        bench.binding("published", TABLE, n=2, pairs=((0, 1),))
    with pytest.raises(SurgeryError, match="different names"):
        bench.binding("published", [QK, QK], n=2)
    with pytest.raises(SurgeryError, match="answer in another slot"):
        measure_directions(bench.surgeon, dict.fromkeys(range(3), bench.prompts("published", 2)), HEADS)


@pytest.mark.parametrize(
    ("conventions", "read", "expected"),
    [
        (PUBLISHED, ("q", "k_both"), {RELEASED: ()}),
        (PUBLISHED, ("k_object", "qk"), {RELEASED: (), SOURCE_CHOICE: SOURCE, BOTH_CHOICE: POOLED}),
        (CONTROLLED, ("k_object", "qk"), {RELEASED: ()}),
        (
            replace(PUBLISHED, qk_keys=("source", "exchanged")),
            ("qk", "k_box"),
            {BY_PROCEDURE: SOURCE, CHOICE_NAMES["exchanged"]: (), BOTH_CHOICE: SOURCE + POOLED},
        ),
    ],
)
def test_a_candidate_differs_in_one_convention_about_the_rows_that_are_read(
    conventions: BindingConventions, read: tuple[str, ...], expected: dict[str, RowConditions]
) -> None:
    """The first choices of a procedure are its first candidate."""
    candidates = conventions.possible(read)
    assert {name: row_conditions(candidate) for name, candidate in candidates.items()} == expected
    assert set(OPEN["qk_keys"]) == dict(SOURCE).keys()
    assert set(OPEN["key_means"]) == dict(POOLED).keys()


def test_the_conditions_of_the_text_are_run_with_the_table() -> None:
    """Only in the variations for the two procedures; the others keep the released table."""
    prompts, heads = Stories(random_model("llama").encoder), Circuit((CircuitHead("B", 1, 0, "readout"),))
    read = {QK_SOURCE, *POOLED_KEYS}
    for name, variation in VARIATIONS.items():
        counts = {"n": 2, "directions": 2, "draws": 1}
        request = request_shifts(prompts, heads, "published", name, PUBLISHED, **counts)
        assert set(request.conditions) - set(variation.conditions) == (read if variation.candidates else set())
    assert [name for name, variation in VARIATIONS.items() if variation.candidates] == ["published", "controlled"]
