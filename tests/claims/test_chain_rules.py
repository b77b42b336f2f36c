"""The rules of path-patching claims on made-up evidence: published groups, and links of the chain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from claims import circuits as of_rules
from claims import test_chain as of_chain
from claims.catalogue import claim
from rebinding.evidence import Evidence
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.claim import LEVEL
from rebinding.verdicts import GateFailed, Verdict
from tests.claims.test_rules import N_PROMPTS, make_study, record_calls


@pytest.mark.parametrize("origin", ["published", "declared", "a file"])
@pytest.mark.parametrize("heads", [(), ((3, 4),)], ids=["empty", "one head"])
def test_a_group_that_the_paper_leaves_empty_is_not_judged(origin: str, heads: tuple[Head, ...]) -> None:
    """On the paper's own circuit the row does not apply: nothing was claimed. On others the group is missing."""

    def discoveries(_: Any) -> Any:
        raise LookupError

    circuit = SimpleNamespace(group=lambda _: heads)
    study = make_study(has_discovered_circuit=False, circuit_from=origin, circuit=circuit, discoveries=discoveries)
    judge = partial(of_chain.test_the_published_heads_are_found_again, claim("circuit.heads_found_again.E"), study)
    if heads or origin != "published":
        with pytest.raises(LookupError):
            judge()
    else:
        assert judge().outcome == "NOT APPLICABLE"


@pytest.mark.parametrize("discovered", [(), ((3, 4),)], ids=["nothing", "a head"])
@pytest.mark.parametrize("group", "AB")
@pytest.mark.parametrize("random", ["role", "role_and_layer"])
def test_a_group_is_resampled_as_it_was_selected(
    group: str, random: str, discovered: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of B is no head of A; the null distribution draws within layers, whatever random circuits do."""
    group_b, again, published = ((5, 6),), ["selections"], ((7, 8), (7, 9), (8, 1))
    conventions = SimpleNamespace(random=random, score="logit", select="sure")
    selections: list[Any] = []
    for name in ("reselected", "selected_on_halves"):
        monkeypatch.setattr(of_rules, name, lambda *options, name=name: selections.append((name, options)) or again)
    groups = {"B": group_b} | {group: discovered}
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=groups.get), evidence={group: "scores"})
    study = make_study(
        conventions=lambda _: conventions, discoveries=lambda _: {"it": discovery}, heads=range(56), layers=7,
        circuit=SimpleNamespace(group={group: published}.get),
    )  # fmt: skip
    empty, overlapping = (
        record_calls(monkeypatch, "absence", of_rules),
        record_calls(monkeypatch, "overlap", of_rules),
    )
    of_rules.compare_with_published_group(claim(f"circuit.heads_found_again.{group}"), study, group, "it", 0.01)
    name = "selected_on_halves" if discovered else "reselected"
    assert selections == [(name, ("scores", "logit", "sure", group_b if group == "A" else ()))]
    if discovered:
        options = {"repetitions": again, "level": 0.01, "universe": 56, "null": "layers", "layers": 7}
        assert (empty, overlapping) == ([], [((discovered, published), options)])
    else:
        assert (empty, overlapping) == ([((again,), {"level": 0.01})], [])


@pytest.mark.parametrize("published", [1, 2, 3])
@pytest.mark.parametrize("random", ["role", "role_and_layer"])
def test_a_group_of_one_or_two_heads_is_judged_by_rank(
    published: int, random: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among all senders of the stage, by its own scores; a larger group is judged by its overlap."""
    discovered, heads, scores = ((3, 4),), ((7, 8), (7, 9), (8, 1))[:published], {(3, 4): -1.0}
    conventions = SimpleNamespace(random=random, score="probability", select="published")
    monkeypatch.setattr(of_rules, "selected_on_halves", lambda *_: [])
    monkeypatch.setattr(of_rules, "scores_by_head", lambda evidence, scale: {(evidence, scale): scores})
    discovery = SimpleNamespace(circuit=SimpleNamespace(group={"D": discovered}.get), evidence={"D": "stage D"})
    study = make_study(
        conventions=lambda _: conventions, discoveries=lambda _: {"it": discovery}, heads=range(56), layers=7,
        circuit=SimpleNamespace(group={"D": heads}.get),
    )  # fmt: skip
    ranked, overlapping = (
        record_calls(monkeypatch, "rank_overlap", of_rules),
        record_calls(monkeypatch, "overlap", of_rules),
    )
    of_rules.compare_with_published_group(claim("circuit.heads_found_again.D"), study, "D", "it", 0.01)
    assert (len(ranked), len(overlapping)) == ((1, 0) if published <= 2 else (0, 1))
    if ranked:
        options = {"scores": {("stage D", "probability"): scores}, "repetitions": [], "level": 0.01}
        assert ranked == [((discovered, heads), options)]


GROUP = tuple(CircuitHead("B", 1, head, "readout") for head in (2, 3))


def judge_link_of(lead: Callable[[int, int], float], floor: float = 0.0, idle: tuple[int, ...] = ()) -> Verdict:
    """The verdict on a link of two heads in a layer of eight, where every head lowers the lead by so much; what an idle
    one sends is not changed."""
    rows = [
        {"prompt": prompt, "layer": 1, "head": head, "lead_orig": 0.0, "lead_patch": -lead(prompt, head)}
        | {"p_orig": 0.8, "p_patch": 0.6, "relative_change": float(head not in idle)}
        for prompt in range(N_PROMPTS) for head in range(8)
    ]  # fmt: skip
    evidence = Evidence("paths", pd.DataFrame(rows), {})
    study = make_study(
        noise_floor=floor, heads=[(1, head) for head in range(8)], circuit=Circuit(GROUP),
        links=lambda claim, stage: {"rotation": evidence, "fresh": evidence},
    )  # fmt: skip
    return of_chain.judge_link(claim("circuit.chain.B_q_A"), study, "B")


@pytest.mark.parametrize(("floor", "margin"), [(0.0, 0.01), (0.004, 0.01), (0.1, 0.2)])
def test_a_link_counts_above_what_the_code_prunes_at_and_above_the_noise_floor(floor: float, margin: float) -> None:
    """Twice the noise floor, if that is larger. The reason gives the relative fall of the probability."""
    verdict = judge_link_of(lambda prompt, head: 0.5 * (head in (2, 3)), floor)
    assert (verdict.outcome, verdict.margin) == ("REPLICATED", pytest.approx(margin))
    assert verdict.measured == pytest.approx(0.5)
    assert "falls by 0.5 a head, with random senders by 0; the probability, relatively, by 0.25" in verdict.reason


@pytest.mark.parametrize(("others", "outcome"), [(0.0, "REPLICATED"), (0.5, "NOT REPLICATED"), (1.0, "NOT REPLICATED")])
def test_a_link_exceeds_that_of_random_senders(others: float, outcome: str) -> None:
    assert judge_link_of(lambda prompt, head: 0.5 if head in (2, 3) else others).outcome == outcome


def test_heads_that_do_no_more_than_some_of_their_layer_are_no_link() -> None:
    """The group lies above the mean of the others, and within their spread."""
    sizes = (0.0, 0.3, 0.25, 0.25, 0.0, 0.3, 0.0, 0.3)
    assert judge_link_of(lambda prompt, head: sizes[head]).outcome == "INCONCLUSIVE"


def test_a_link_whose_own_heads_send_nothing_new_is_not_judged() -> None:
    """That random senders do is no help."""
    assert judge_link_of(lambda prompt, head: 0.5, idle=(2,)).outcome == "NOT REPLICATED"
    with pytest.raises(GateFailed, match="no-ops"):
        judge_link_of(lambda prompt, head: 0.5, idle=(2, 3))


def test_a_link_that_moves_nothing_is_refuted_whatever_random_senders_do() -> None:
    """Among these may be a head that works, and then their spread is wide."""
    assert judge_link_of(lambda prompt, head: 9.0 * (head == 5)).outcome == "NOT REPLICATED"


def test_a_stage_that_was_not_run_is_judged_by_the_stage_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """E sends to D, and D to C. Where nothing sends to C there is no stage E: what counts is whether D is empty."""
    conventions = SimpleNamespace(random="role", score="logit", select="sure")
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={"A": "a", "C": "c", "D": "d"})
    study = make_study(
        conventions=lambda _: conventions,
        discoveries=lambda _: {"it": discovery},
        circuit=SimpleNamespace(group=lambda _: ()),
    )
    monkeypatch.setattr(of_rules, "reselected", lambda evidence, *_: [evidence])
    absent = record_calls(monkeypatch, "absence", of_rules)
    of_rules.compare_with_published_group(claim("circuit.heads_found_again.E"), study, "E", "it", LEVEL)
    assert absent == [((["d"],), {"level": LEVEL})]
