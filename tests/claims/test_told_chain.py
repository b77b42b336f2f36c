"""Rows on path patching on numbers that are made up here: groups found again, and links of the chain."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import circuits as of_rules
from claims import test_chain as of_chain
from claims.catalogue import claim
from rebinding.experiments.paths.summary import RESAMPLES
from rebinding.paper.circuit import Head
from rebinding.paper.claim import LEVEL
from tests.claims.test_told import FEW, noted, told


@pytest.mark.parametrize("where", ["published", "declared", "a file"])
@pytest.mark.parametrize("heads", [(), ((3, 4),)], ids=["empty", "one head"])
def test_a_group_that_the_paper_leaves_empty_is_not_looked_for(where: str, heads: tuple[Head, ...]) -> None:
    """On the paper's own circuit it is no gate that fails: nothing was claimed. Elsewhere the group is missing."""

    def discoveries(_: Any) -> Any:
        raise LookupError

    circuit = SimpleNamespace(group=lambda _: heads)
    study = told(found_here=False, circuit_from=where, circuit=circuit, discoveries=discoveries)
    judge = partial(of_chain.test_the_published_heads_are_found_again, claim("circuit.heads_found_again.E"), study)
    if heads or where != "published":
        with pytest.raises(LookupError):
            judge()
    else:
        assert judge().outcome == "NOT APPLICABLE"


@pytest.mark.parametrize("ours", [(), ((3, 4),)], ids=["nothing", "a head"])
@pytest.mark.parametrize("group", "AB")
@pytest.mark.parametrize(("random", "null"), [("role", "universe"), ("role_and_layer", "layers")])
def test_a_group_is_chosen_again_as_it_was(
    group: str, random: str, null: str, ours: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of B is no head of A, and blind draws have in common with the circuit what its random circuits have."""
    taken, again, theirs = ((5, 6),), [[(3, 4)]] * 3, ((7, 8), (7, 9), (8, 1))
    conventions = SimpleNamespace(random=random, score="logit", select="sure")
    chosen: list[Any] = []
    monkeypatch.setattr(of_rules, "reselected", lambda *a, **k: chosen.append((a, k)) or again)
    groups = {"B": taken} | {group: ours}
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=groups.get), evidence={group: "scores"})
    study = told(
        conventions=lambda _: conventions, discoveries=lambda _: {"it": discovery}, all_heads=56, layers=7,
        circuit=SimpleNamespace(group={group: theirs}.get),
    )  # fmt: skip
    empty, overlapping = noted(monkeypatch, "emptiness", of_rules), noted(monkeypatch, "overlap", of_rules)
    of_rules.found_again(claim(f"circuit.heads_found_again.{group}"), study, group, "it", 0.01)
    assert chosen == [(("scores", "logit", "sure"), {"exclude": taken if group == "A" else ()})]
    if ours:
        options = {"selections": again, "level": 0.01, "universe": 56, "null": null, "layers": 7}
        assert (empty, overlapping) == ([], [((ours, theirs), options)])
    else:
        assert (empty, overlapping) == ([((ours,), {"empty": False, "selections": again, "level": 0.01})], [])


@pytest.mark.parametrize("published", [1, 2, 3])
@pytest.mark.parametrize(("random", "null"), [("role", "universe"), ("role_and_layer", "layers")])
def test_a_group_of_one_or_two_heads_is_judged_by_rank(
    published: int, random: str, null: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among all senders of the stage, by its own scores; a larger group by its overlap."""
    ours, theirs, scores = ((3, 4),), ((7, 8), (7, 9), (8, 1))[:published], {(3, 4): -1.0}
    conventions = SimpleNamespace(random=random, score="probability", select="published")
    monkeypatch.setattr(of_rules, "reselected", lambda *_, **__: [])
    monkeypatch.setattr(of_rules, "scores_by_head", lambda evidence, scale: {(evidence, scale): scores})
    discovery = SimpleNamespace(circuit=SimpleNamespace(group={"D": ours}.get), evidence={"D": "stage D"})
    study = told(
        conventions=lambda _: conventions, discoveries=lambda _: {"it": discovery}, all_heads=56, layers=7,
        circuit=SimpleNamespace(group={"D": theirs}.get),
    )  # fmt: skip
    ranked, overlapping = noted(monkeypatch, "rank_overlap", of_rules), noted(monkeypatch, "overlap", of_rules)
    of_rules.found_again(claim("circuit.heads_found_again.D"), study, "D", "it", 0.01)
    assert (len(ranked), len(overlapping)) == ((1, 0) if published <= 2 else (0, 1))
    if ranked:
        options = {"scores": {("stage D", "probability"): scores}, "selections": [], "null": null, "level": 0.01}
        assert ranked == [((ours, theirs), options)]


@pytest.mark.parametrize(("floor", "counts"), [(0.0, 0.01), (0.004, 0.01), (0.1, 0.2)])
def test_a_link_counts_above_what_the_code_prunes_at_and_above_the_noise_floor(
    floor: float, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the noise floor, where that is larger. The relative fall of the probability is stated beside it."""
    falls = {"logit": np.full(FEW, 0.5), "probability": np.full(FEW, 0.125)}
    monkeypatch.setattr(of_rules, "lost_by_senders", lambda evidence, heads, scale: falls[scale])
    calls = noted(monkeypatch, "effect", of_rules)
    link = claim("circuit.chain.B_q_A")
    found = of_rules.falls(link, told(measured_floor=floor), {"rotation": None, "fresh": None}, ((1, 2),))
    assert [options["margin"] for _, options in calls] == [pytest.approx(counts)] * len(calls)
    assert {options["level"] for _, options in calls} == {LEVEL, LEVEL / 2}
    assert "falls by 0.12" in found.reason


def test_a_stage_that_was_not_run_chooses_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    conventions = SimpleNamespace(random="role", score="logit", select="sure")
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={})
    study = told(
        conventions=lambda _: conventions,
        discoveries=lambda _: {"it": discovery},
        circuit=SimpleNamespace(group=lambda _: ()),
    )
    empty = noted(monkeypatch, "emptiness", of_rules)
    of_rules.found_again(claim("circuit.heads_found_again.E"), study, "E", "it", LEVEL)
    ((_, options),) = empty
    assert options["selections"] == [[]] * RESAMPLES
