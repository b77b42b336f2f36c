"""The conventions of section 4.2 reach the request, the prompts and the numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claims.test_roles import BALANCED
from rebinding.experiments.prompts import EVALUATION_ID, Stories
from rebinding.experiments.roles.measure import run_roles
from rebinding.experiments.roles.request import RolePair, request_interchange, roles_stories
from rebinding.experiments.roles.summary import effects, group_effects, of_group
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import RolesConventions, builtin_procedure
from rebinding.planted import build
from rebinding.task.designs import design
from tests.close import allowance
from tests.experiments.binding.setup import random_model
from tests.experiments.roles.test_roles import GROUPS, pairs

PUBLISHED, CONTROLLED = (builtin_procedure(name).roles for name in ("published", "controlled"))
BLOCK = design("counterbalanced").block


@pytest.fixture(scope="module")
def prompts() -> Stories:
    return Stories(load("planted:pointer", dtype="float32", device="cpu").encoder())


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return Circuit(build("pointer").circuit)


def make_request(
    prompts: Stories, circuit: Circuit, conventions: RolesConventions, n: int = 4, kind: Any = "pointer"
) -> Any:
    return request_interchange(prompts, circuit, roles_stories(prompts, conventions, "published"), kind, n, conventions)


def test_published_is_what_was_released(prompts: Stories, circuit: Circuit) -> None:
    request = make_request(prompts, circuit, PUBLISHED)
    assert (request.mode, request.future, request.answers) == ("published", "keep", "exp34_unspaced")
    assert (request.prompts.design, request.prompts.split) == ("published", "train")
    assert request.prompts.ids == (0, 1, 2, 3)
    pairs = [design("published").pointer(number) for number in range(4)]
    assert list(prompts.encode(request.prompts).items) == pairs


def test_the_text_is_the_second_candidate(prompts: Stories, circuit: Circuit) -> None:
    """Patterns at the readout, and the opposite direction. The conventions of the text have no second candidate."""
    code, text = PUBLISHED.possible.values()
    assert code == PUBLISHED
    assert (text.places, text.direction, text.pointer) == ("paper", "text", "structure")
    assert make_request(prompts, circuit, text).key != make_request(prompts, circuit, code).key
    pairs = [design("published").structure_only_pointer(number, mirror=True) for number in range(4)]
    assert list(prompts.encode(make_request(prompts, circuit, text).prompts).items) == pairs
    assert [*CONTROLLED.possible.values()] == [CONTROLLED]
    assert [*text.possible.values()] == [text]


def test_controlled_pairs_are_balanced_and_held_out(prompts: Stories, circuit: Circuit) -> None:
    """Over a block every slot of the answer comes equally often, each id goes both ways, and only statements move."""
    assert BALANCED % BLOCK == 0
    request = make_request(prompts, circuit, CONTROLLED, BLOCK)
    assert request.prompts.ids == tuple(range(EVALUATION_ID, EVALUATION_ID + BLOCK))
    assert (request.prompts.design, request.prompts.split) == ("counterbalanced", "evaluation")
    moves: Counter[tuple[int, int]] = Counter()
    for _, original, counterfactual in prompts.encode(request.prompts).pairs:
        slots = [side.prompt.story.objects.index(side.prompt.answer) for side in (original, counterfactual)]
        moves[slots[0], slots[1]] += 1
        assert original.prompt.story.operations == counterfactual.prompt.story.operations
        assert set(original.prompt.story.contents) == set(counterfactual.prompt.story.contents)
        assert original.prompt.answer == counterfactual.prompt.answer
    assert set(moves) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert set(moves.values()) == {2 * BLOCK // 6}


def test_both_directions_of_an_id_are_one_unit() -> None:
    """The number of an id is the mean of the two directions."""
    bench = random_model("llama")
    kinds = {mirror: pairs(bench, "pointer", mirror=mirror) for mirror in (False, True)}

    def run(pairs: list[RolePair]) -> Any:
        token = bench.encoder.answer_token
        return run_roles(bench.surgeon, pairs, GROUPS, kind="pointer", token=token, single_heads=False)

    combined, *separate = (run(pairs) for pairs in ([*kinds[False], *kinds[True]], *kinds.values()))
    assert sorted(effects(combined)["answer_slot"].unique()) == [0, 1]
    assert not group_effects(combined).duplicated(["prompt", "group"]).any()
    first, second = (of_group(evidence, "B", "pointed_object") for evidence in separate)
    close = allowance(combined.rows["before"], combined.rows["after"])
    assert np.abs(first - second).max() > 10 * close, "two directions that say the same would show nothing"
    assert of_group(combined, "B", "pointed_object") == pytest.approx((first + second) / 2, abs=close)


def test_each_convention_changes_the_request(prompts: Stories, circuit: Circuit) -> None:
    """All but the two that say how many candidates there are, of conventions and of tokens."""
    changes: dict[str, Any] = {
        "places": "own_role", "direction": "text", "pointer": "structure", "design": "counterbalanced",
        "ids": "held_out", "answers": "continuation", "future": "mask",
    }  # fmt: skip
    assert set(changes) | {"candidates", "readout"} == set(vars(PUBLISHED))
    keys = [make_request(prompts, circuit, replace(PUBLISHED, **{name: value})).key for name, value in changes.items()]
    assert len({make_request(prompts, circuit, PUBLISHED).key, *keys}) == len(changes) + 1


def test_another_design_replaces_only_the_published_one(prompts: Stories) -> None:
    assert roles_stories(prompts, PUBLISHED, "partner_second").name == "partner_second"
    assert roles_stories(prompts, CONTROLLED, "partner_second").name == "counterbalanced"
