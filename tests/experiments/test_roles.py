"""What heads attend to by name of a token; what section 4.2 patches, keeps and refuses; and how its conventions reach
the request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from claims.test_roles import BALANCED
from rebinding.evidence import Evidence
from rebinding.experiments.attention import by_token, even, measure_heads, names_before
from rebinding.experiments.prompts import EVALUATION_ID, Stories
from rebinding.experiments.roles import measure
from rebinding.experiments.roles.measure import run_roles
from rebinding.experiments.roles.request import RolePair, request_interchange, roles_stories
from rebinding.experiments.roles.summary import effects, group_effects, of_group
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import RolesConventions, builtin_procedure
from rebinding.planted import build
from rebinding.surgery import SurgeryError
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder, PromptError
from rebinding.task.text import Prompt
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.setup import Bench, planted, random_model

GROUPS: Any = {"A": [(2, 1), (3, 4)], "B": [(1, 0), (1, 2)], "D": [(1, 5)], "E": [(1, 3)]}


def close(evidence: Evidence) -> float:
    """The allowed difference of two implementations on these logits."""
    return allowance(evidence.rows["before"], evidence.rows["after"])


def pairs(bench: Bench, kind: str, n: int = 2, *, mirror: bool = False) -> list[RolePair]:
    designed = [getattr(design("published"), kind)(number, mirror=mirror) for number in range(n)]
    sides = [bench.encoder.encode(getattr(pair, side) for pair in designed) for side in ("original", "counterfactual")]
    return [RolePair(number, *pair) for number, pair in enumerate(zip(*sides, strict=True))]


def run(bench: Bench, kind: str = "pointer", *, n: int = 2, mirror: bool = False, **options: Any) -> Evidence:
    token = bench.encoder.answer_token
    return run_roles(bench.surgeon, pairs(bench, kind, n, mirror=mirror), GROUPS, kind=kind, token=token, **options)


def test_future_attention_is_kept_or_removed() -> None:
    """In published pointer pairs the tokens of D and E stand later in the counterfactual; nowhere else do they."""
    bench = random_model("llama")
    full, masked = run(bench, n=8, future="keep"), run(bench, n=8, future="mask")
    future = full.rows.groupby("group")["future_mass"].max()
    assert min(future["D"], future["E"]) > 1e-6, "masked, it is zero to the bit"
    assert future["A"] == future["B"] == 0
    difference = (full.rows["after"] - masked.rows["after"]).abs().groupby(full.rows["group"]).max()
    assert difference[["D", "E"]].min() > MIN_CHANGE_SHARE * close(full)
    assert difference[["A", "B"]].max() == 0
    assert run(bench, "content_control").rows["future_mass"].max() == 0


def test_a_masked_row_of_attention_sums_to_one() -> None:
    """Half of the attention is after the query at key 1: what is left doubles. Attention on the past alone stays."""
    rows = torch.tensor([[[0.125, 0.375, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]])  # (pair, head, key)
    expected = torch.tensor([[[0.25, 0.75, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]])
    torch.testing.assert_close(measure._masked(rows, torch.tensor([1])), expected, rtol=0, atol=0)


def test_a_patch_of_no_heads_is_refused() -> None:
    bench = random_model("llama")
    with pytest.raises(SurgeryError, match="nothing to patch"):
        run_roles(bench.surgeon, pairs(bench, "pointer"), {"A": []}, kind="pointer", token=bench.encoder.answer_token)


PUBLISHED, CONTROLLED = (builtin_procedure(name).roles for name in ("published", "controlled"))
BLOCK = design("counterbalanced").block


@pytest.fixture(scope="module")
def prompts() -> Stories:
    return Stories(load("planted:pointer", dtype="float32", device="cpu").encoder())


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return Circuit(build("pointer").circuit)


def make_request(prompts: Stories, circuit: Circuit, conventions: RolesConventions, n: int = 4) -> Any:
    stories = roles_stories(prompts, conventions, "published")
    return request_interchange(prompts, circuit, stories, "pointer", n, conventions)


def test_published_conventions_are_the_released_ones(prompts: Stories, circuit: Circuit) -> None:
    request = make_request(prompts, circuit, PUBLISHED)
    assert (request.mode, request.future, request.answers) == ("published", "keep", "exp34_unspaced")
    assert (request.prompts.design, request.prompts.split, request.prompts.ids) == ("published", "train", (0, 1, 2, 3))
    assert list(prompts.encode(request.prompts).items) == [design("published").pointer(number) for number in range(4)]


def test_the_text_is_the_second_candidate(prompts: Stories, circuit: Circuit) -> None:
    """Patterns at the readout, and the opposite direction. The conventions of the text have no second candidate."""
    code, text = PUBLISHED.possible.values()
    assert code == PUBLISHED
    assert (text.places, text.direction, text.pointer) == ("paper", "text", "structure")
    items = prompts.encode(make_request(prompts, circuit, text).prompts).items
    assert list(items) == [design("published").structure_only_pointer(number, mirror=True) for number in range(4)]
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
    forth, back = (pairs(bench, "pointer", mirror=mirror) for mirror in (False, True))
    combined, *separate = (
        run_roles(bench.surgeon, side, GROUPS, kind="pointer", token=bench.encoder.answer_token, single_heads=False)
        for side in ([*forth, *back], forth, back)
    )
    assert sorted(effects(combined)["answer_slot"].unique()) == [0, 1]
    assert not group_effects(combined).duplicated(["prompt", "group"]).any()
    first, second = (of_group(evidence, "B", "pointed_object") for evidence in separate)
    assert np.abs(first - second).max() > 10 * close(combined), "two directions that say the same would show nothing"
    assert of_group(combined, "B", "pointed_object") == pytest.approx((first + second) / 2, abs=close(combined))


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


def swapped(encoder: Encoder, n: int = 22) -> list[Encoded]:
    """Counterbalanced prompts that ask about a swapped box, more than a block of them."""
    prompts = planted("pointer", "llama").prompts("counterbalanced", 2 * n)
    return [encoded for encoded in encoder.encode(item.prompt for item in prompts) if "swap_asked" in encoded.roles][:n]


def test_tokens_are_named_by_function() -> None:
    """Every earlier token with a role once; the same names whatever slots and order a prompt has."""
    for encoded in swapped(planted("pointer", "llama").encoder):
        names = names_before(encoded, "readout")
        assert set(names.values()) == {at for at in encoded.roles.values() if at < encoded.roles["readout"]}
        assert set(names) == {
            "context_asked", "context_asked_object", "context_partner", "context_partner_object", "context_box",
            "context_object", "swap_asked", "swap_partner", "swap_period", "question_box",
        }  # fmt: skip
        assert all(encoded.roles[name] == at for name, at in names.items() if name in encoded.roles)
        assert set(names) - set(names_before(encoded, "question_box")) == {"question_box"}


def test_prompts_that_differ_in_their_roles_are_refused() -> None:
    bench = planted("pointer", "llama")
    first, second = swapped(bench.encoder, 2)
    lacking = replace(second, roles={name: at for name, at in second.roles.items() if name != "swap_period"})
    with pytest.raises(PromptError, match="prompt 1 has other roles than prompt 0"):
        measure_heads(bench.surgeon, [first, lacking], [0, 1], bench.groups["A"], "readout")
    contents = tuple(Contains(box, object) for box, object in zip("ABCD", ("egg", "fan", "boot", "shell"), strict=True))
    (wide,) = bench.encoder.encode([Prompt(Story(contents, (Swap("A", "B"),)), "B")])
    with pytest.raises(PromptError, match="would have one name"):
        names_before(wide, "readout")


def test_means_are_over_heads_and_by_prompt() -> None:
    bench = planted("pointer", "llama")
    prompts = swapped(bench.encoder, 3)
    evidence = measure_heads(bench.surgeon, prompts, [5, 9, 7], bench.groups["A"], "readout")
    copy, echo = (evidence.rows[evidence.rows["head"] == head] for _, head in bench.groups["A"])
    for name, mean in by_token(evidence).items():
        halves = [table[table["token"] == name].sort_values("prompt")["attention"].to_numpy() for table in (copy, echo)]
        assert mean == pytest.approx(sum(halves) / 2, abs=allowance(1.0))
    assert even(evidence) == pytest.approx([1 / (prompts[0].roles["readout"] + 1)] * 3)
