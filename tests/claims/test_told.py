"""Rows on numbers that are told here: what no plant, and no model that runs here, brings about."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import test_attention as of_attention
from claims import test_beyond as of_others
from claims import test_binding as of_binding
from claims import test_circuit as of_circuits
from claims import test_robustness as of_robustness
from claims import test_tracing as of_tracing
from rebinding.experiments.circuit.summary import RESAMPLES
from rebinding.paper.circuit import CircuitHead, Head
from rebinding.paper.claim import LEVEL
from rebinding.paper.numbers import number, share_kept
from rebinding.paper.procedure import given
from rebinding.paper.rows.attention import A_LOOKS
from rebinding.paper.rows.beyond import STATIC
from rebinding.paper.rows.binding import CANCELS, MASS, SIGNATURE
from rebinding.paper.rows.circuit import AGAIN, COMPACT, E_EMPTY, E_PRESENT, MINIMAL, NEAR_FULL
from rebinding.paper.rows.robustness import FRESH
from rebinding.paper.rows.tracing import NOT_THROUGH
from rebinding.verdicts import effect, ordering, reported

FEW = 6


def told(**answers: Any) -> Any:
    """A study that says this and nothing else."""
    return SimpleNamespace(procedure=lambda claim: given(claim.procedure), **answers)


def noted(monkeypatch: pytest.MonkeyPatch, rule: str, of: ModuleType = of_circuits) -> list[Any]:
    """What a rule is called with, by the rows of a module."""
    calls: list[Any] = []

    def noting(*given: Any, **options: Any) -> Any:
        calls.append((given, options))
        return reported("", "", measured=0.0, n=1)

    monkeypatch.setattr(of, rule, noting)
    return calls


@pytest.mark.parametrize(("base", "gate"), [(1.0, "base"), (1 - 1 / FEW, None)])
def test_what_was_never_lost_cannot_be_restored(base: float, gate: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_tracing, "base", lambda *_: base)
    monkeypatch.setattr(of_tracing, "restored", lambda *_: np.zeros((2, FEW)))
    monkeypatch.setattr(of_tracing, "support", lambda *_: (-1.0, 1.0))
    found = of_tracing.test_labels_do_not_carry_the_object(NOT_THROUGH, told(traced=lambda *_: None))
    assert found.gate == gate


@pytest.mark.parametrize("where", ["published", "declared", "a file"])
@pytest.mark.parametrize("heads", [(), ((3, 4),)], ids=["empty", "one head"])
def test_a_group_that_the_paper_leaves_empty_is_not_looked_for(where: str, heads: tuple[Head, ...]) -> None:
    """On the paper's own circuit it is no gate that fails: nothing was claimed. Elsewhere the group is missing."""

    def discoveries(_: Any) -> Any:
        raise LookupError

    circuit = SimpleNamespace(group=lambda _: heads)
    study = told(found_here=False, circuit_from=where, circuit=circuit, discoveries=discoveries)
    judge = partial(of_circuits.test_the_published_heads_are_found_again, AGAIN["E"], study)
    if heads or where != "published":
        with pytest.raises(LookupError):
            judge()
    else:
        assert judge().outcome == "NOT APPLICABLE"


def test_shares_of_attention_are_bounded_as_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spread the bound comes from the range alone."""
    shares = {"context_partner_object": 0.75, "swap_asked": 0.25}
    monkeypatch.setattr(of_attention, "by_token", lambda _: {name: np.full(FEW, of) for name, of in shares.items()})
    monkeypatch.setattr(of_attention, "even", lambda _: np.full(FEW, 0.25))
    found = of_attention.test_a_looks_at_the_answers_object(A_LOOKS, told(ask=lambda *_: None))
    margin, level = A_LOOKS.margin(), 0.05
    here = ordering(np.full(FEW, 0.75), np.full(FEW, 0.25), margin=margin, support=(-1.0, 1.0), level=level)
    assert (found.outcome, found.low, found.high) == (here.outcome, here.low, here.high)


def test_shares_of_switches_are_bounded_as_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_binding, "shift", lambda *_: np.full(FEW, 0.5))
    there: Any = None
    parts = of_binding.as_random(CANCELS, there, "random_qk", "switch")
    supports = {name: part.keywords["support"] for name, part in parts.items() if isinstance(part, partial)}
    assert supports == {"dR": None, "dlogit": None, "switch": (-1.0, 1.0)}


def test_a_share_of_attention_is_bounded_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what B looks at, context tokens are summed; what is the question's box's is told beside it."""
    shares = {"context_box": 0.5, "context_partner_object": 0.25, "question_box": 0.125}
    monkeypatch.setattr(
        "claims.test_binding.by_token", lambda _: {name: np.full(FEW, of) for name, of in shares.items()}
    )
    found = of_binding.test_group_b_looks_at_the_context(MASS, told(ask=lambda *_: None))
    here = effect(np.full(FEW, 0.75), above=1 / 4, margin=MASS.margin(), support=(0.0, 1.0))
    assert (found.outcome, found.measured, found.low, found.high) == (here.outcome, 0.75, here.low, here.high)
    assert found.reason.endswith("the question's box has 0.12")


def test_a_signature_is_of_as_many_prompts_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of as many sets of directions; what is told is by how much keys do more than the query."""
    moved = {"q": 1.0, "k_both": 3.0, "qk": 0.0}
    monkeypatch.setattr(of_binding, "shift", lambda _, name, __: np.full((3, FEW), moved[name]))
    there = told(binding=lambda _: None)
    there.at_readouts = lambda _: {"here": there}
    found = of_binding.test_the_signature(SIGNATURE, there)
    assert (found.n, found.measured) == (FEW, 2.0)


@pytest.mark.parametrize(
    ("where", "given_e", "found_e", "had"),
    [
        ("published", False, None, True),
        ("declared", True, None, True),
        ("declared", False, None, False),
        ("discovered", False, (False, True), True),
        ("discovered", True, (False, False), False),
    ],
)
def test_where_a_group_was_before_pruning(
    where: str, given_e: bool, found_e: tuple[bool, ...] | None, had: bool
) -> None:
    """Of the paper's circuit it is told; of our own the discoveries before pruning say it."""

    def circuit(has: bool) -> Any:
        return SimpleNamespace(group=lambda name: ((1, 2),) if has and name == "E" else ())

    found = {str(at): SimpleNamespace(circuit=circuit(has)) for at, has in enumerate(found_e or ())}
    study = told(circuit_from=where, circuit=circuit(given_e), discoveries=lambda _: found)
    assert of_circuits.had_e(study) == had


@pytest.mark.parametrize(("alone", "heads", "judged"), [(True, 2, True), (True, 0, False), (False, 2, False)])
def test_heads_are_needed_by_what_does_the_task(
    alone: bool, heads: int, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_circuits, "stands_alone", lambda _: alone)
    monkeypatch.setattr(of_circuits, "of_circuit", lambda *_: np.full(FEW, 3.0))
    monkeypatch.setattr(of_circuits, "without_head", lambda *_: np.full(FEW, 1.0))
    circuit = SimpleNamespace(heads=[CircuitHead("A", 1, at, "readout") for at in range(heads)])
    ways = {"pruned_circuit": circuit, "prunings": lambda _: {"": None}, "one_by_one": lambda _: None}
    way = SimpleNamespace(prune_step=0.5)
    found = of_circuits.test_no_kept_head_can_go(MINIMAL, told(way=lambda _: way, **ways))
    assert found.gate == (None if judged else "circuit_left")
    assert found.margin == (0.25 if judged else None)


def test_the_first_order_of_pruning_is_held_against_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [(), ((1, 2),), ((3, 4),)]
    monkeypatch.setattr(
        of_circuits, "left_by_order", lambda _: [SimpleNamespace(group=lambda _, g=g: g) for g in orders]
    )
    asked = noted(monkeypatch, "emptiness")
    study = told(prunings=lambda _: {"": None})
    of_circuits.test_what_pruning_leaves_of_e(E_EMPTY, study)
    of_circuits.test_what_pruning_leaves_of_e(E_PRESENT, study)
    told_twice = [((orders[0],), {"empty": empty, "selections": orders[1:], "level": LEVEL}) for empty in (True, False)]
    assert asked == told_twice


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_printed_share_is_of_one_circuit(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of how much that share varies, so what varies is taken from our own walks."""
    orders = [SimpleNamespace(pairs=7), SimpleNamespace(pairs=14)]
    monkeypatch.setattr(of_circuits, "left_by_order", lambda _: orders)
    asked, paper = noted(monkeypatch, "value"), share_kept("llama3.2-3b")
    found = dict.fromkeys("abc"[:candidates])
    of_circuits.test_the_circuit_is_small(
        COMPACT, told(printed=lambda _: paper, prunings=lambda _: found, all_heads=70)
    )
    assert [shares.tolist() for (shares, _), _ in asked] == [[0.1, 0.2]] * candidates
    options = {"unit": "circuit draws", "paper_draws": 1, "level": LEVEL / candidates}
    assert [(to, how) for (_, to), how in asked] == [(paper, options)] * candidates


@pytest.mark.parametrize("ours", [(), ((3, 4),)], ids=["nothing", "a head"])
@pytest.mark.parametrize("group", "AB")
@pytest.mark.parametrize(("random", "null"), [("role", "universe"), ("role_and_layer", "layers")])
def test_a_group_is_chosen_again_as_it_was(
    group: str, random: str, null: str, ours: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of B is no head of A, and blind draws have in common with the circuit what its random circuits have."""
    taken, again, theirs = ((5, 6),), [[(3, 4)]] * 3, ((7, 8),)
    way = SimpleNamespace(random=random, score="logit", select="sure")
    chosen: list[Any] = []
    monkeypatch.setattr(of_circuits, "reselected", lambda *a, **k: chosen.append((a, k)) or again)
    groups = {"B": taken} | {group: ours}
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=groups.get), evidence={group: "scores"})
    study = told(
        way=lambda _: way, discoveries=lambda _: {"it": discovery}, all_heads=56, layers=7,
        circuit=SimpleNamespace(group={group: theirs}.get),
    )  # fmt: skip
    empty, overlapping = noted(monkeypatch, "emptiness"), noted(monkeypatch, "overlap")
    of_circuits.found_again(AGAIN[group], study, "it", 0.01)
    assert chosen == [(("scores", "logit", "sure"), {"exclude": taken if group == "A" else ()})]
    if ours:
        options = {"selections": again, "level": 0.01, "universe": 56, "null": null, "layers": 7}
        assert (empty, overlapping) == ([], [((ours, theirs), options)])
    else:
        assert (empty, overlapping) == ([((ours,), {"empty": False, "selections": again, "level": 0.01})], [])


def test_a_stage_that_was_not_run_chooses_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    way = SimpleNamespace(random="role", score="logit", select="sure")
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={})
    study = told(
        way=lambda _: way, discoveries=lambda _: {"it": discovery}, circuit=SimpleNamespace(group=lambda _: ())
    )
    empty = noted(monkeypatch, "emptiness")
    of_circuits.found_again(AGAIN["E"], study, "it", LEVEL)
    ((_, options),) = empty
    assert options["selections"] == [[]] * RESAMPLES


def test_what_a_head_contributes_is_bounded() -> None:
    """A head's worth is a difference of two shares, less a per cent."""
    (part,) = of_circuits.contributing({"nothing": np.zeros(FEW)}).values()
    assert isinstance(part, partial)
    assert part.keywords["support"] == pytest.approx((-1.01, 1.0))


def test_static_heads_are_those_of_all_shared_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen again group by group and put together; of A those that B does not have."""
    groups = {"A": ((6, 0),), "B": ((4, 3),), "C": ((2, 7),), "D": ((1, 1),)}
    circuit = SimpleNamespace(group=lambda name: groups.get(name, ()))
    found = SimpleNamespace(circuit=circuit, evidence={name: name for name in "ABD"})
    chosen: list[Any] = []

    def reselected(evidence: str, *ways: str, exclude: Any) -> list[list[tuple[int, int]]]:
        chosen.append((evidence, exclude))
        return [list(groups[evidence])] * RESAMPLES

    monkeypatch.setattr(of_others, "static_circuit", lambda *_: found)
    monkeypatch.setattr(of_others, "reselected", reselected)
    overlapping = noted(monkeypatch, "overlap", of_others)
    way = SimpleNamespace(score="logit", select="sure")
    of_others.shared_with_static(
        STATIC, told(way=lambda _: way, circuit=circuit, all_heads=56, layers=7, ask=print), level=0.01
    )
    shared = {(6, 0), (4, 3), (2, 7)}
    options = {
        "selections": [{(6, 0), (4, 3)}] * RESAMPLES,
        "null": "layers",
        "level": 0.01,
        "universe": 56,
        "layers": 7,
    }
    assert chosen == [("A", groups["B"]), ("B", ())]
    assert overlapping == [((shared, shared), options)]


def test_no_static_heads_are_no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={})
    monkeypatch.setattr(of_others, "static_circuit", lambda *_: found)
    study = told(way=lambda _: None, ask=print, circuit=SimpleNamespace(group=lambda _: ((6, 0),)))
    assert of_others.shared_with_static(STATIC, study, level=LEVEL).outcome == "NOT REPLICATED"


def test_nine_tenths_of_the_model_are_bounded_by_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit of the circuit less nine tenths of one of the model lies between -0.9 and 1."""
    hits = {"circuit": np.full(FEW, True), "full": np.full(FEW, True)}
    monkeypatch.setattr(of_circuits, "of_circuit", lambda _, which, __: hits[which])
    found = of_circuits.test_the_circuit_is_nearly_as_good_as_the_model(NEAR_FULL, told(ablated=lambda _: None))
    here = effect(np.full(FEW, 1 - 0.9), margin=0.0, support=(-0.9, 1.0))
    assert (found.outcome, found.measured, found.low, found.high) == (here.outcome, here.measured, here.low, here.high)


def test_new_words_are_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test half and of the evaluation third, each by its own answers: one that comes up often counts once."""
    hits = np.array([1.0, 1.0, 0.0, 1.0])
    random = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    monkeypatch.setattr("claims.parts.of_circuit", lambda *_: hits)
    monkeypatch.setattr("claims.parts.of_random", lambda *_: random)
    monkeypatch.setattr(of_robustness, "all_of", lambda _, parts: parts)
    answers = {"test": ["cup", "cup", "cup", "hat"], "evaluation": ["cup", "hat", "pen", "cup"]}
    study = told(ablated_elsewhere=lambda _, name, split: split, words=lambda split: answers[split])
    parts: Any = of_robustness.test_the_circuit_serves_new_words(FRESH, study)
    (mine, others), options = parts["test half"].args, parts["test half"].keywords
    assert np.allclose(mine, [2 / 3, 1])
    assert np.allclose(others, [[1 / 3, 1], [1 / 3, 0]])
    assert options == {"unit": "nested", "support": (-1, 1), "margin": FRESH.margin("accuracy")}
    mine, others = parts["evaluation third"].args
    assert np.allclose(mine, [1, 1, 0])
    assert np.allclose(others, [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("shape", [(FEW,), (3, FEW)], ids=["prompts", "sets of directions and prompts"])
def test_prompts_behind_an_unsaid_number_are_as_many_as_ours(shape: tuple[int, ...]) -> None:
    part = of_binding.printed(np.zeros(shape), number("binding.q.dR@llama3.2-3b"))
    assert isinstance(part, partial)
    assert part.keywords["paper_n"] == FEW
