"""The conventions of section 4.2 reach the request, the prompts and the numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claims.test_roles import BALANCED
from rebinding.experiments.prompts import EVALUATION_ID, Prompts
from rebinding.experiments.roles.measure import run_roles
from rebinding.experiments.roles.request import RolePair, candidate_conventions, request_interchange, roles_stories
from rebinding.experiments.roles.summary import effects, group_effects, of_group
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import RolesConventions, given
from rebinding.planted import build
from rebinding.task.designs import design
from tests.close import allowance
from tests.experiments.binding.setup import random_model
from tests.experiments.roles.test_roles import GROUPS, pairs

PUBLISHED, CONTROLLED = (given(name).roles for name in ("published", "controlled"))
BLOCK = design("counterbalanced").block


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(load("planted:pointer", dtype="float32", device="cpu").encoder())


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return Circuit(build("pointer").circuit)


def asked(prompts: Prompts, circuit: Circuit, conventions: RolesConventions, n: int = 4, kind: Any = "pointer") -> Any:
    return request_interchange(prompts, circuit, roles_stories(prompts, conventions, "published"), kind, n, conventions)


def test_published_is_what_was_released(prompts: Prompts, circuit: Circuit) -> None:
    request = asked(prompts, circuit, PUBLISHED)
    assert (request.mode, request.future, request.answers) == ("published", "keep", "exp34_unspaced")
    assert (request.prompts.design, request.prompts.split) == ("published", "train")
    assert request.prompts.ids == (0, 1, 2, 3)
    drawn = [design("published").pointer(number) for number in range(4)]
    assert list(prompts.drawn(request.prompts).items) == drawn


def test_the_text_is_the_other_candidate(prompts: Prompts, circuit: Circuit) -> None:
    """Patterns at the readout, and the answer goes the other way. Who is run as told has no other candidate."""
    code, text = candidate_conventions(PUBLISHED)
    assert code == PUBLISHED
    assert (text.places, text.direction, text.pointer) == ("paper", "text", "structure")
    assert asked(prompts, circuit, text).key != asked(prompts, circuit, code).key
    drawn = [design("published").structure_only_pointer(number, mirror=True) for number in range(4)]
    assert list(prompts.drawn(asked(prompts, circuit, text).prompts).items) == drawn
    assert candidate_conventions(CONTROLLED) == (CONTROLLED,)
    assert candidate_conventions(text) == (text,)


def test_controlled_pairs_are_balanced_and_held_out(prompts: Prompts, circuit: Circuit) -> None:
    """Over a block every slot of the answer comes equally often, each id goes both ways, and only statements move."""
    assert BALANCED % BLOCK == 0
    request = asked(prompts, circuit, CONTROLLED, BLOCK)
    assert request.prompts.ids == tuple(range(EVALUATION_ID, EVALUATION_ID + BLOCK))
    assert (request.prompts.design, request.prompts.split) == ("counterbalanced", "evaluation")
    moves: Counter[tuple[int, int]] = Counter()
    for _, own, other in prompts.drawn(request.prompts).pairs:
        slots = [one.prompt.story.objects.index(one.prompt.answer) for one in (own, other)]
        moves[slots[0], slots[1]] += 1
        assert own.prompt.story.operations == other.prompt.story.operations
        assert set(own.prompt.story.contents) == set(other.prompt.story.contents)
        assert own.prompt.answer == other.prompt.answer
    assert set(moves) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert set(moves.values()) == {2 * BLOCK // 6}


def test_both_directions_of_an_id_are_one_unit() -> None:
    """What is weighed is the mean of the two, prompt by prompt."""
    bench = random_model("llama")
    kinds = {mirror: pairs(bench, "pointer", mirror=mirror) for mirror in (False, True)}

    def run(given: list[RolePair]) -> Any:
        token = bench.encoder.answer_token
        return run_roles(bench.surgeon, given, GROUPS, kind="pointer", token=token, single_heads=False)

    together, *apart = (run(given) for given in ([*kinds[False], *kinds[True]], *kinds.values()))
    assert sorted(effects(together)["answer_slot"].unique()) == [0, 1]
    assert not group_effects(together).duplicated(["prompt", "group"]).any()
    one, other = (of_group(evidence, "B", "pointed_object") for evidence in apart)
    close = allowance(together.rows["before"], together.rows["after"])
    assert np.abs(one - other).max() > 10 * close, "two directions that say the same would show nothing"
    assert of_group(together, "B", "pointed_object") == pytest.approx((one + other) / 2, abs=close)


def test_each_convention_tells_requests_apart(prompts: Prompts, circuit: Circuit) -> None:
    """All but the two that say how many candidates there are, of conventions and of tokens."""
    changes: dict[str, Any] = {
        "places": "own_role", "direction": "text", "pointer": "structure", "design": "counterbalanced",
        "ids": "held_out", "answers": "continuation", "future": "mask",
    }  # fmt: skip
    assert set(changes) | {"candidates", "readout"} == set(vars(PUBLISHED))
    keys = [asked(prompts, circuit, replace(PUBLISHED, **{name: value})).key for name, value in changes.items()]
    assert len({asked(prompts, circuit, PUBLISHED).key, *keys}) == len(changes) + 1


def test_another_design_stands_in_for_the_published_one_only(prompts: Prompts) -> None:
    assert roles_stories(prompts, PUBLISHED, "partner_second").name == "partner_second"
    assert roles_stories(prompts, CONTROLLED, "partner_second").name == "counterbalanced"
