"""The rules of claims on made-up evidence, for cases that no plant and no model here shows."""

from __future__ import annotations

from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from claims import circuits as of_rules
from claims import test_attention as of_attention
from claims import test_beyond as of_others
from claims import test_binding as of_binding
from claims import test_binding_correct as of_correct
from claims import test_circuit as of_circuits
from claims import test_robustness as of_robustness
from claims import test_roles as of_roles
from claims import test_tracing as of_tracing
from claims.catalogue import catalogue, claim
from rebinding.evidence import Evidence
from rebinding.experiments.ablation import UNPRUNED
from rebinding.experiments.paths.summary import RESAMPLES
from rebinding.experiments.roles.request import WHOLE_GROUP, WORDS
from rebinding.paper.circuit import CircuitHead
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.numbers import number, share_kept
from rebinding.paper.procedure import builtin_procedure
from rebinding.verdicts import GateFailed, Verdict, edits_change_values, effect, ordering, reported, require

A_LOOKS = claim("circuit.a_attends_to_object")
STATIC = claim("beyond.static_and_bystander")
MASS = claim("beyond.mass")
FRESH = claim("robust.fresh_prompts")
N_PROMPTS = 6
ABLATED = 60
"""Prompts of made-up ablations, enough to decide."""


def make_study(**answers: Any) -> Any:
    """A study with these attributes and no others."""
    options = {"has_one_kv_head": False} | answers
    return SimpleNamespace(procedure=lambda claim: builtin_procedure(claim.procedure), **options)


def record_calls(monkeypatch: pytest.MonkeyPatch, rule: str, module: ModuleType = of_circuits) -> list[Any]:
    """The arguments with which the rows of a module call a rule."""
    calls: list[Any] = []

    def record(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return reported("", "", measured=0.0, n=1)

    monkeypatch.setattr(module, rule, record)
    return calls


@pytest.mark.parametrize(("base", "gate"), [(1.0, "base"), (1 - 1 / N_PROMPTS, None)])
def test_an_answer_that_was_never_lost_cannot_be_restored(
    base: float, gate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_tracing, "unpatched_hit_rate", lambda *_: base)
    monkeypatch.setattr(of_tracing, "gains_by_place", lambda *_: np.zeros((2, N_PROMPTS)))
    monkeypatch.setattr(of_tracing, "support", lambda *_: (-1.0, 1.0))
    row = claim("tracing.object_not_through_labels")
    verdict = of_tracing.test_labels_do_not_carry_the_object(row, make_study(trace_residuals=lambda *_: None))
    assert verdict.gate == gate


@pytest.mark.parametrize(("losses", "share"), [([True, True, False, True], 2 / 3), ([False] * 4, 0.0)])
def test_an_order_of_layers_counts_prompts_with_a_loss(
    losses: list[bool], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the patch has nothing to restore in any prompt, no order was seen, and none counts as kept."""
    monkeypatch.setattr(of_tracing, "restorable", lambda evidence, conventions: pd.Series(losses))
    holds, unused = pd.Series([True, False, True, True]), (None, None)  # `restorable` is replaced above
    part = of_tracing.in_most(claim("tracing.pointer_before_payload"), holds, unused)
    assert part(level=LEVEL).measured == pytest.approx(share)


def test_attention_is_bounded_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spread the bound comes from the range alone: of a difference of two shares, and of a sum over context
    tokens, whose reason gives that on the question's box."""

    def judge(module: ModuleType, rule: str, row: Claim, **shares: float) -> Verdict:
        by_token = {name: np.full(N_PROMPTS, share) for name, share in shares.items()}
        monkeypatch.setattr(module, "by_token", lambda _: by_token)
        return getattr(module, rule)(row, make_study(ask=lambda *_: None))

    monkeypatch.setattr(of_attention, "even", lambda _: np.full(N_PROMPTS, 0.25))
    looks = {"context_partner_object": 0.75, "swap_asked": 0.25}
    verdict = judge(of_attention, "test_a_looks_at_the_answers_object", A_LOOKS, **looks)
    options: dict[str, Any] = {"margin": A_LOOKS.margin(), "support": (-1.0, 1.0), "level": 0.05}
    expected = ordering(np.full(N_PROMPTS, 0.75), np.full(N_PROMPTS, 0.25), **options)
    assert (verdict.outcome, verdict.low, verdict.high) == (expected.outcome, expected.low, expected.high)

    shares = {"context_box": 0.5, "context_partner_object": 0.25, "question_box": 0.125}
    verdict = judge(of_binding, "test_group_b_looks_at_the_context", MASS, **shares)
    expected = effect(np.full(N_PROMPTS, 0.75), above=1 / 4, margin=MASS.margin(), support=(0.0, 1.0))
    for field in ("outcome", "measured", "low", "high"):
        assert getattr(verdict, field) == getattr(expected, field)
    assert verdict.measured == 0.75
    assert verdict.reason.endswith("the question's box has 0.12")


@pytest.mark.parametrize(
    ("origin", "judged_e", "discovered_e", "expected"),
    [
        ("published", False, None, True),
        ("declared", True, None, True),
        ("declared", False, None, False),
        ("discovered", False, (False, True), True),
        ("discovered", True, (False, False), False),
    ],
)
def test_whether_a_circuit_had_a_group_before_pruning(
    origin: str, judged_e: bool, discovered_e: tuple[bool, ...] | None, expected: bool
) -> None:
    """The paper's circuit had one; for our own circuit the discoveries before pruning decide."""

    def circuit(has_e: bool) -> Any:
        return SimpleNamespace(group=lambda name: ((1, 2),) if has_e and name == "E" else ())

    discoveries = {str(at): SimpleNamespace(circuit=circuit(has_e)) for at, has_e in enumerate(discovered_e or ())}
    study = make_study(circuit_from=origin, circuit=circuit(judged_e), discoveries=lambda _: discoveries)
    assert of_rules.has_e_before_pruning(claim("circuit.e_prime"), study) == expected


@pytest.mark.parametrize(("works_alone", "heads", "is_judged"), [(True, 2, True), (True, 0, False), (False, 2, False)])
def test_heads_are_needed_only_in_a_circuit_that_does_the_task(
    works_alone: bool, heads: int, is_judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_circuits, "circuit_works_alone", lambda _: works_alone)
    monkeypatch.setattr(of_circuits, "scores_before_pruning", lambda _: (0.1, 1.0))
    monkeypatch.setattr(of_circuits, "of_circuit", lambda *_: np.full(N_PROMPTS, 3.0))
    monkeypatch.setattr(of_circuits, "without_head", lambda *_: np.full(N_PROMPTS, 1.0))
    circuit = SimpleNamespace(heads=[CircuitHead("A", 1, at, "readout") for at in range(heads)])
    answers = {"pruned_circuit": circuit, "prunings": lambda _: {"": None}, "ablate_each_head": lambda _: None}
    conventions = SimpleNamespace(prune_step=0.5)
    verdict = of_circuits.test_no_kept_head_can_go(
        claim("circuit.minimal"), make_study(conventions=lambda _: conventions, **answers)
    )
    assert verdict.gate == (None if is_judged else "circuit_left")
    assert verdict.margin == (0.25 if is_judged else None)


def test_the_first_order_of_pruning_is_compared_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [(), ((1, 2),), ((3, 4),)]
    walks = [SimpleNamespace(group=lambda _, g=g: g) for g in orders]
    monkeypatch.setattr(of_circuits, "circuits_after_walks", lambda _: walks)
    calls = record_calls(monkeypatch, "emptiness")
    study = make_study(prunings=lambda _: {"": None})
    of_circuits.test_what_pruning_leaves_of_e(claim("circuit.group_e_empty"), study)
    of_circuits.test_what_pruning_leaves_of_e(claim("circuit.group_e_present"), study)
    options = [{"empty": empty, "selections": orders[1:], "level": LEVEL} for empty in (True, False)]
    assert calls == [((orders[0],), kwargs) for kwargs in options]


def test_a_printed_share_is_of_one_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper does not say how much that share varies, so the variance comes from our own walks."""
    orders = [SimpleNamespace(pairs=7), SimpleNamespace(pairs=14)]
    monkeypatch.setattr(of_rules, "circuits_after_walks", lambda _: orders)
    calls, paper = record_calls(monkeypatch, "value"), share_kept("llama3.2-3b")
    study = make_study(printed=lambda _: paper, prunings=lambda _: dict.fromkeys("abc"), heads=range(70))
    of_circuits.test_the_circuit_is_small(claim("circuit.compact"), study)
    assert [shares.tolist() for (shares, _), _ in calls] == [[0.1, 0.2]] * 3
    options = {"unit": "circuit draws", "paper_draws": 1, "level": LEVEL / 3}
    assert [(number, kwargs) for (_, number), kwargs in calls] == [(paper, options)] * 3


@pytest.mark.parametrize(("kept", "outcome"), [(20, "REPLICATED"), (30, "NOT REPLICATED")])
def test_few_heads_are_an_eighth_of_a_large_model(kept: int, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 heads an eighth are 25. A head at two tokens counts once."""
    walks = [SimpleNamespace(unique=kept, pairs=2 * kept)] * 8
    monkeypatch.setattr(of_circuits, "circuits_after_walks", lambda _: walks)
    study = make_study(paper_model=None, prunings=lambda _: {"": None}, heads=range(200))
    assert of_circuits.test_the_circuit_has_few_heads(claim("circuit.few_heads"), study).outcome == outcome


def test_sizes_that_are_not_judged_are_in_the_reason() -> None:
    """Of a printed list, of a small model, and where no number is printed."""
    printed_list = make_study(paper_model="llama3.2-3b", circuit=SimpleNamespace(unique=42), heads=range(672))
    small = make_study(paper_model=None, heads=range(199))
    unprinted = make_study(printed=lambda _: None, circuit=SimpleNamespace(pairs=7), heads=range(70))
    few, compact = of_circuits.test_the_circuit_has_few_heads, of_circuits.test_the_circuit_is_small
    for rule, row, study, reason in (
        (few, "circuit.few_heads", printed_list, "42 of 672 heads, 6.2%"),
        (few, "circuit.few_heads", small, "199 heads"),
        (compact, "circuit.compact", unprinted, "its circuit has 7 head-position pairs, 10.0% of 70 heads"),
    ):
        verdict = rule(claim(row), study)
        assert verdict.outcome == "NOT APPLICABLE"
        assert reason in verdict.reason


@pytest.mark.parametrize(("hits", "outcome"), [(8, "REPLICATED"), (7, "NOT REPLICATED")])
def test_near_full_is_three_quarters_of_the_model(hits: int, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten prompts in ten that the full model answers the circuit answers eight, or seven."""
    n = 4000
    answers = {"full": np.ones(n, dtype=bool), "circuit": np.arange(n) % 10 < hits}
    monkeypatch.setattr(of_circuits, "of_circuit", lambda _, which, measure: answers[which])
    monkeypatch.setattr(of_circuits, "random_sizes", lambda _: {})
    monkeypatch.setattr(of_circuits, "of_random", lambda *_: np.zeros((3, n)))
    study = make_study(ablate_circuit=lambda _: None)
    verdict = of_circuits.test_the_circuit_is_near_the_full_model(claim("circuit.near_full"), study)
    assert verdict.outcome == outcome
    assert verdict.measured == pytest.approx(hits / 10 - 0.75)


def test_the_contribution_of_a_head_is_bounded() -> None:
    """It is a difference of two shares, less a per cent."""
    (part,) = of_rules.contributes_a_per_cent({"nothing": np.zeros(N_PROMPTS)}).values()
    assert isinstance(part, partial)
    assert part.keywords["support"] == pytest.approx((-1.01, 1.0))


def test_static_heads_are_those_of_all_shared_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated on halves of the prompts group by group and joined; A without the heads of B."""
    groups = {"A": ((6, 0),), "B": ((4, 3),), "C": ((2, 7),), "D": ((1, 1),)}
    circuit = SimpleNamespace(group=lambda name: groups.get(name, ()))
    static = SimpleNamespace(circuit=circuit, evidence={name: name for name in "ABD"})
    selections: list[Any] = []

    def selected_on_halves(evidence: str, scale: str, rule: str, exclude: Any) -> list[Any]:
        selections.append((evidence, exclude))
        return [(list(groups[evidence]), [])] * RESAMPLES

    monkeypatch.setattr(of_others, "discover_static_circuit", lambda *_: static)
    monkeypatch.setattr(of_others, "selected_on_halves", selected_on_halves)
    overlaps = record_calls(monkeypatch, "overlap", of_others)
    conventions = SimpleNamespace(score="logit", select="sure")
    of_others.shared_with_static(
        STATIC,
        make_study(conventions=lambda _: conventions, circuit=circuit, heads=range(56), layers=7, ask=print),
        level=0.01,
    )
    shared = {(6, 0), (4, 3), (2, 7)}
    options = {"null": "layers", "level": 0.01, "universe": 56, "layers": 7}
    options["repetitions"] = [({(6, 0), (4, 3)}, set())] * RESAMPLES
    assert selections == [("A", groups["B"]), ("B", ())]
    assert overlaps == [((shared, shared), options)]


def test_no_static_heads_are_no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no selection on resampled prompts has a head; one with a head leaves it open."""
    static = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={"A": "a", "B": "b"})
    conventions = SimpleNamespace(score="logit", select="sure")
    monkeypatch.setattr(of_others, "discover_static_circuit", lambda *_: static)
    study = make_study(conventions=lambda _: conventions, ask=print, circuit=SimpleNamespace(group=lambda _: ((6, 0),)))
    for last, outcome in (([], "NOT REPLICATED"), ([(6, 0)], "INCONCLUSIVE")):
        resampled = {"a": [[]] * RESAMPLES, "b": [*([[]] * (RESAMPLES - 1)), last]}
        monkeypatch.setattr(of_others, "reselected", lambda evidence, *_, resampled=resampled: resampled[evidence])
        assert of_others.shared_with_static(STATIC, study, level=LEVEL).outcome == outcome


def ablated(random: dict[str, tuple[float, ...]], circuit: float = 1.0) -> Evidence:
    """Made-up evidence: shares of hits of the circuit, of random circuits draw by draw and size by size, and of a full
    model that is always right; the first prompts are the hits."""
    variants = [("full", "", -1, 1.0), ("circuit", "", -1, circuit)]
    variants += [("random", size, *pair) for size, shares in random.items() for pair in enumerate(shares)]
    rows = [
        {"variant": variant, "group": size, "draw": draw, "prompt": prompt, "hit": prompt < share * ABLATED}
        for variant, size, draw, share in variants for prompt in range(ABLATED)
    ]  # fmt: skip
    return Evidence("ablation", pd.DataFrame(rows), {})


def test_halfway_from_random_circuits_to_the_model_is_the_boundary() -> None:
    """A hit of the circuit less half of the model's and of a random one's lies between -1 and 1."""
    evidence = ablated({"": (0.0, 0.5, 1.0)})
    verdict = of_circuits.test_the_circuit_recovers_most_of_the_task(
        claim("circuit.recovers_most"), make_study(ablate_circuit=lambda _: evidence)
    )
    random = (np.arange(ABLATED) < np.array([[0.0], [0.5], [1.0]]) * ABLATED).astype(float)  # (draw, prompt)
    expected = effect((1 - random) / 2, margin=0.0, unit="nested", support=(-1.0, 1.0))
    assert (verdict.outcome, verdict.measured, verdict.low, verdict.high) == (
        expected.outcome,
        0.25,
        expected.low,
        expected.high,
    )


@pytest.mark.parametrize("row", ["circuit.recovers_most", "circuit.beats_random", "circuit.not_a_floor"])
@pytest.mark.parametrize(
    ("sizes", "outcome"),
    [
        ({"": (0.2,) * 10}, "REPLICATED"),
        ({"": (0.99,) * 10}, "NOT REPLICATED"),
        ({"": (0.2,) * 10, UNPRUNED: (0.2,) * 10}, "REPLICATED"),
        ({"": (0.99,) * 10, UNPRUNED: (0.2,) * 10}, "REPLICATED"),
        ({"": (0.99,) * 10, UNPRUNED: (0.99,) * 10}, "NOT REPLICATED"),
    ],
)
def test_random_circuits_may_have_had_the_size_before_pruning(
    row: str, sizes: dict[str, tuple[float, ...]], outcome: str
) -> None:
    """A sentence is refuted if it fails beside random circuits of either size."""
    evidence = ablated(sizes, circuit=0.9)
    if row == "circuit.not_a_floor":  # its model is weak
        full = evidence.rows["variant"] == "full"
        evidence.rows.loc[full, "hit"] = evidence.rows.loc[full, "prompt"] < 0.7 * ABLATED
    judge = {entry.claim.id: entry.test for entry in catalogue()}[row]
    assert judge(claim(row), make_study(ablate_circuit=lambda _: evidence)).outcome == outcome


def test_the_unit_of_new_words_is_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test half and the evaluation third, each by its own answers: a frequent word counts once."""
    hits = np.array([1.0, 1.0, 0.0, 1.0])
    random = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    monkeypatch.setattr("claims.conventions.of_circuit", lambda *_: hits)
    monkeypatch.setattr("claims.conventions.of_random", lambda *_: random)
    monkeypatch.setattr(of_robustness, "all_of", lambda _, parts: parts)
    answers = {"test": ["cup", "cup", "cup", "hat"], "evaluation": ["cup", "hat", "pen", "cup"]}
    study = make_study(ablate_on_other_prompts=lambda _, name, split: split, words=lambda split: answers[split])
    parts: Any = of_robustness.test_the_circuit_serves_new_words(FRESH, study)
    (circuit, random_circuits), options = parts["test half"].args, parts["test half"].keywords
    assert np.allclose(circuit, [2 / 3, 1])
    assert np.allclose(random_circuits, [[1 / 3, 1], [1 / 3, 0]])
    assert options == {"unit": "nested", "support": (-1, 1), "margin": FRESH.margin("accuracy")}
    circuit, random_circuits = parts["evaluation third"].args
    assert np.allclose(circuit, [1, 1, 0])
    assert np.allclose(random_circuits, [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("shape", [(N_PROMPTS,), (3, N_PROMPTS)], ids=["prompts", "sets of directions and prompts"])
def test_a_printed_number_without_n_takes_our_n(shape: tuple[int, ...]) -> None:
    part = of_correct.compare_with_unknown_n(np.zeros(shape), number("binding.q.dR@llama3.2-3b"))
    assert isinstance(part, partial)
    assert part.keywords["paper_n"] == N_PROMPTS


@pytest.mark.parametrize(
    ("b", "a", "outcome"),
    [
        ({3: 1.0, 4: 1.0}, {5: 1.0}, "REPLICATED"),
        ({3: 1.0, 6: 0.4}, {5: 1.0}, "REPLICATED"),  # half of it is done in layer 3
        ({3: 0.4, 6: 1.0}, {5: 1.0}, "NOT REPLICATED"),
        ({5: 1.0}, {5: 1.0}, "NOT REPLICATED"),
        ({3: 1.0}, {5: 0.1}, "NOT REPLICATED"),  # A hardly raises it
        ({3: 0.1}, {5: 1.0}, "NOT REPLICATED"),
        ({3: 1.0, 4: -1.0}, {5: 1.0}, "NOT REPLICATED"),  # together nothing
    ],
)
def test_b_acts_before_a_if_half_of_what_it_does_is_done_in_an_earlier_layer(
    b: dict[int, float], a: dict[int, float], outcome: str
) -> None:
    rows = []
    for group, by_layer in (("B", b), ("A", a)):
        changes = {(layer, 0): change for layer, change in by_layer.items()}
        for (layer, head), change in {(WHOLE_GROUP, WHOLE_GROUP): sum(by_layer.values()), **changes}.items():
            place = {"group": group, "layer": layer, "head": head, "answer_slot": 0}
            rows += [
                place | {"prompt": prompt, "word": word, "before": 1.0, "after": 1.0 + change * (word == WORDS[2])}
                for prompt in range(ABLATED) for word in WORDS
            ]  # fmt: skip
    study = make_study(ask=lambda *_: Evidence("roles", pd.DataFrame(rows), {}), cut=0)
    study.at_readouts = lambda _: {"here": study}
    verdict = of_roles.test_the_place_is_found_before_the_object_is_fetched(claim("beyond.pointer_then_payload"), study)
    assert verdict.outcome == outcome


@pytest.mark.parametrize("idle", [(), ("objects",), ("rotation", "fresh"), ("rotation", "fresh", "objects")])
def test_noise_that_leaves_d_as_it_is_tests_nothing(idle: tuple[str, ...]) -> None:
    """Such kinds are left out, unless all are: then nothing is judged."""
    conventions = builtin_procedure("published").circuit

    def ask(claim: Claim, request: Any) -> str:
        (kind,) = request.keywords["conventions"].noise
        require(edits_change_values([0.0 if kind in idle else 1.0]))
        return str(kind)

    study, row = make_study(ask=ask, conventions=lambda _: conventions), claim("circuit.d_shapes_c")
    if len(idle) == len(conventions.noise):
        with pytest.raises(GateFailed, match="no-ops"):
            of_attention.shaped_attention(row, study)
    else:
        assert set(of_attention.shaped_attention(row, study)) == set(conventions.noise) - set(idle)
