"""Rows on numbers that are told here: what no plant, and no model that runs here, brings about."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import circuits as of_rules
from claims import conventions
from claims import test_attention as of_attention
from claims import test_beyond as of_others
from claims import test_binding as of_binding
from claims import test_binding_correct as of_correct
from claims import test_binding_signatures as of_signatures
from claims import test_circuit as of_circuits
from claims import test_robustness as of_robustness
from claims import test_tracing as of_tracing
from claims.catalogue import claim
from rebinding.experiments.paths.summary import RESAMPLES
from rebinding.paper.circuit import CircuitHead
from rebinding.paper.claim import LEVEL
from rebinding.paper.numbers import number, share_kept
from rebinding.paper.procedure import given
from rebinding.verdicts import effect, invalid, ordering, reported

A_LOOKS = claim("circuit.a_attends_to_object")
STATIC = claim("beyond.static_and_bystander")
MASS = claim("beyond.mass")
FRESH = claim("robust.fresh_prompts")
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
    row = claim("tracing.object_not_through_labels")
    found = of_tracing.test_labels_do_not_carry_the_object(row, told(traced=lambda *_: None))
    assert found.gate == gate


def test_shares_of_attention_are_bounded_as_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spread the bound comes from the range alone."""
    shares = {"context_partner_object": 0.75, "swap_asked": 0.25}
    monkeypatch.setattr(of_attention, "by_token", lambda _: {name: np.full(FEW, of) for name, of in shares.items()})
    monkeypatch.setattr(of_attention, "even", lambda _: np.full(FEW, 0.25))
    found = of_attention.test_a_looks_at_the_answers_object(A_LOOKS, told(ask=lambda *_: None))
    margin, level = A_LOOKS.margin(), 0.05
    here = ordering(np.full(FEW, 0.75), np.full(FEW, 0.25), margin=margin, support=(-1.0, 1.0), level=level)
    assert (found.outcome, found.low, found.high) == (here.outcome, here.low, here.high)


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
    moved = {"q": 1.0, "k_both": 3.0, "k_box": 0.0, "k_object": 0.0, "qk": 0.0}
    monkeypatch.setattr(of_signatures, "shift", lambda _, name, __: np.full((3, FEW), moved[name]))
    monkeypatch.setattr(conventions, "attention_by_head", lambda _: "some")
    there = told(binding=lambda _: None)
    there.at_readouts = lambda _: {"here": there}
    found = of_signatures.test_the_signature(claim("binding.signature"), there)
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
    assert of_rules.had_e(claim("circuit.e_prime"), study) == had


@pytest.mark.parametrize(("alone", "heads", "judged"), [(True, 2, True), (True, 0, False), (False, 2, False)])
def test_heads_are_needed_by_what_does_the_task(
    alone: bool, heads: int, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_circuits, "stands_alone", lambda _: alone)
    monkeypatch.setattr(of_circuits, "of_circuit", lambda *_: np.full(FEW, 3.0))
    monkeypatch.setattr(of_circuits, "without_head", lambda *_: np.full(FEW, 1.0))
    circuit = SimpleNamespace(heads=[CircuitHead("A", 1, at, "readout") for at in range(heads)])
    ways = {"pruned_circuit": circuit, "prunings": lambda _: {"": None}, "one_by_one": lambda _: None}
    conventions = SimpleNamespace(prune_step=0.5)
    found = of_circuits.test_no_kept_head_can_go(
        claim("circuit.minimal"), told(conventions=lambda _: conventions, **ways)
    )
    assert found.gate == (None if judged else "circuit_left")
    assert found.margin == (0.25 if judged else None)


def test_the_first_order_of_pruning_is_held_against_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [(), ((1, 2),), ((3, 4),)]
    walks = [SimpleNamespace(group=lambda _, g=g: g) for g in orders]
    monkeypatch.setattr(of_circuits, "left_by_order", lambda _: walks)
    asked = noted(monkeypatch, "emptiness")
    study = told(prunings=lambda _: {"": None})
    of_circuits.test_what_pruning_leaves_of_e(claim("circuit.group_e_empty"), study)
    of_circuits.test_what_pruning_leaves_of_e(claim("circuit.group_e_present"), study)
    told_twice = [((orders[0],), {"empty": empty, "selections": orders[1:], "level": LEVEL}) for empty in (True, False)]
    assert asked == told_twice


@pytest.mark.parametrize(("row", "found"), [("circuit.compact", 1), ("circuit.compact.candidates", 3)])
@pytest.mark.parametrize("known", [True, False], ids=["one way", "one of three ways"])
def test_a_printed_share_is_of_one_circuit(row: str, found: int, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of how much that share varies, so what varies is taken from our own walks."""
    orders = [SimpleNamespace(pairs=7), SimpleNamespace(pairs=14)]
    monkeypatch.setattr(of_rules, "left_by_order", lambda _: orders)
    asked, paper = noted(monkeypatch, "value"), share_kept("llama3.2-3b")
    monkeypatch.setattr(of_circuits, "value_unidentified", lambda told: invalid("value", ",".join(told), ""))
    walks = dict.fromkeys("abc"[:found])
    conventions = SimpleNamespace(candidates=walks if known else dict.fromkeys("abc"))
    study = told(printed=lambda _: paper, prunings=lambda _: walks, all_heads=70, conventions=lambda _: conventions)
    verdict = of_circuits.test_the_circuit_is_small(claim(row), study)
    assert [shares.tolist() for (shares, _), _ in asked] == [[0.1, 0.2]] * found
    options = {"unit": "circuit draws", "paper_draws": 1, "level": LEVEL / found}
    assert [(to, how) for (_, to), how in asked] == [(paper, options)] * found
    assert verdict.gate == (None if known or found == 3 else "a"), "it may be the number of a way that was not run"


def test_where_no_number_is_printed_the_size_of_the_circuit_is_told() -> None:
    study = told(printed=lambda _: None, circuit=SimpleNamespace(pairs=7), all_heads=70)
    found = of_circuits.test_the_circuit_is_small(claim("circuit.compact"), study)
    assert found.outcome == "NOT APPLICABLE"
    assert found.reason.endswith("its circuit has 7 head-position pairs, 10.0% of 70 heads")


def test_what_a_head_contributes_is_bounded() -> None:
    """A head's worth is a difference of two shares, less a per cent."""
    (part,) = of_rules.contributing({"nothing": np.zeros(FEW)}).values()
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

    monkeypatch.setattr(of_others, "discover_static_circuit", lambda *_: found)
    monkeypatch.setattr(of_others, "reselected", reselected)
    overlapping = noted(monkeypatch, "overlap", of_others)
    conventions = SimpleNamespace(score="logit", select="sure")
    of_others.shared_with_static(
        STATIC, told(conventions=lambda _: conventions, circuit=circuit, all_heads=56, layers=7, ask=print), level=0.01
    )
    shared = {(6, 0), (4, 3), (2, 7)}
    options = {"null": "layers", "level": 0.01, "universe": 56, "layers": 7}
    options["selections"] = [{(6, 0), (4, 3)}] * RESAMPLES
    assert chosen == [("A", groups["B"]), ("B", ())]
    assert overlapping == [((shared, shared), options)]


def test_no_static_heads_are_no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={})
    monkeypatch.setattr(of_others, "discover_static_circuit", lambda *_: found)
    study = told(conventions=lambda _: None, ask=print, circuit=SimpleNamespace(group=lambda _: ((6, 0),)))
    assert of_others.shared_with_static(STATIC, study, level=LEVEL).outcome == "NOT REPLICATED"


def test_half_of_the_way_from_random_circuits_to_the_model_is_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit of the circuit less half of the model's and of a random one's lies between -1 and 1."""
    hits = {"circuit": np.full(FEW, True), "full": np.full(FEW, True)}
    random = np.stack([np.zeros(FEW), np.full(FEW, 0.5), np.ones(FEW)])  # (draw, prompt)
    monkeypatch.setattr(of_circuits, "of_circuit", lambda _, which, __: hits[which])
    monkeypatch.setattr(of_circuits, "of_random", lambda *_: random)
    study = told(ablated=lambda _: None)
    found = of_circuits.test_the_circuit_recovers_most_of_the_task(claim("circuit.recovers_most"), study)
    here = effect((1 - random) / 2, margin=0.0, unit="nested", support=(-1.0, 1.0))
    assert (found.outcome, found.measured, found.low, found.high) == (here.outcome, 0.25, here.low, here.high)


@pytest.mark.parametrize(
    ("circuit", "full", "finding"),
    [(6, 10, "below-the-model"), (10, 6, "above-the-model"), (10, 10, "within-error"), (0, 10, "below-the-model")],
)
def test_the_share_of_the_model_is_told_apart_from_all_of_it(circuit: int, full: int, finding: str) -> None:
    ours, whole = (np.arange(10 * FEW) % 10 < hits for hits in (circuit, full))
    found = of_rules.share_of_hits(ours, whole)
    assert (found.outcome, found.finding, found.measured) == ("REPORTED", finding, circuit / full)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= circuit / full <= found.high


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
    part = of_correct.printed(np.zeros(shape), number("binding.q.dR@llama3.2-3b"))
    assert isinstance(part, partial)
    assert part.keywords["paper_n"] == FEW
