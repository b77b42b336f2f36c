"""The rules of path-patching claims on made-up evidence: published groups, and links of the chain."""

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
    group_b, resampled, published = ((5, 6),), [[(3, 4)]] * 3, ((7, 8), (7, 9), (8, 1))
    conventions = SimpleNamespace(random=random, score="logit", select="sure")
    selections: list[Any] = []
    monkeypatch.setattr(of_rules, "reselected", lambda *a, **k: selections.append((a, k)) or resampled)
    groups = {"B": group_b} | {group: discovered}
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=groups.get), evidence={group: "scores"})
    study = make_study(
        conventions=lambda _: conventions, discoveries=lambda _: {"it": discovery}, heads=range(56), layers=7,
        circuit=SimpleNamespace(group={group: published}.get),
    )  # fmt: skip
    empty, overlapping = (
        record_calls(monkeypatch, "emptiness", of_rules),
        record_calls(monkeypatch, "overlap", of_rules),
    )
    of_rules.compare_with_published_group(claim(f"circuit.heads_found_again.{group}"), study, group, "it", 0.01)
    assert selections == [(("scores", "logit", "sure"), {"exclude": group_b if group == "A" else ()})]
    if discovered:
        options = {"selections": resampled, "level": 0.01, "universe": 56, "null": "layers", "layers": 7}
        assert (empty, overlapping) == ([], [((discovered, published), options)])
    else:
        assert (empty, overlapping) == ([((discovered,), {"empty": False, "selections": resampled, "level": 0.01})], [])


@pytest.mark.parametrize("published", [1, 2, 3])
@pytest.mark.parametrize("random", ["role", "role_and_layer"])
def test_a_group_of_one_or_two_heads_is_judged_by_rank(
    published: int, random: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among all senders of the stage, by its own scores; a larger group is judged by its overlap."""
    discovered, heads, scores = ((3, 4),), ((7, 8), (7, 9), (8, 1))[:published], {(3, 4): -1.0}
    conventions = SimpleNamespace(random=random, score="probability", select="published")
    monkeypatch.setattr(of_rules, "reselected", lambda *_, **__: [])
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
        options = {"scores": {("stage D", "probability"): scores}, "selections": [], "level": 0.01}
        assert ranked == [((discovered, heads), options)]


@pytest.mark.parametrize(("floor", "margin"), [(0.0, 0.01), (0.004, 0.01), (0.1, 0.2)])
def test_a_link_counts_above_what_the_code_prunes_at_and_above_the_noise_floor(
    floor: float, margin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the noise floor, if that is larger. The reason gives the relative fall of the probability."""
    losses = {"logit": np.full(N_PROMPTS, 0.5), "probability": np.full(N_PROMPTS, 0.125)}
    monkeypatch.setattr(of_rules, "lost_by_senders", lambda evidence, heads, scale: losses[scale])
    calls = record_calls(monkeypatch, "effect", of_rules)
    link = claim("circuit.chain.B_q_A")
    verdict = of_rules.lowers_the_lead(
        link, make_study(noise_floor=floor), {"rotation": None, "fresh": None}, ((1, 2),)
    )
    assert [options["margin"] for _, options in calls] == [pytest.approx(margin)] * len(calls)
    assert {options["level"] for _, options in calls} == {LEVEL, LEVEL / 2}
    assert "falls by 0.12" in verdict.reason


def test_a_stage_that_was_not_run_has_empty_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    conventions = SimpleNamespace(random="role", score="logit", select="sure")
    discovery = SimpleNamespace(circuit=SimpleNamespace(group=lambda _: ()), evidence={})
    study = make_study(
        conventions=lambda _: conventions,
        discoveries=lambda _: {"it": discovery},
        circuit=SimpleNamespace(group=lambda _: ()),
    )
    empty = record_calls(monkeypatch, "emptiness", of_rules)
    of_rules.compare_with_published_group(claim("circuit.heads_found_again.E"), study, "E", "it", LEVEL)
    ((_, options),) = empty
    assert options["selections"] == [[]] * RESAMPLES
