"""Simulated evidence says what its world says, also in worlds that are less kind than the paper's."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from claims.catalogue import claim
from fixtures.judging import judge_after_gates
from rebinding.experiments.ablation import VariantName
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.circuit.summary import of_circuit
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.paths.summary import TinyProbabilities
from rebinding.experiments.roles.summary import of_group
from rebinding.simulate.worlds import NotSimulated, Run, World, WorldName, read_world, scale_spreads, world
from rebinding.study.study import Study
from rebinding.verdicts.estimates import Array
from tests.simulate.studies import judge_row, make_study, row

HEADS_FOUND_AGAIN = claim("circuit.heads_found_again.D")
ROWS = {
    "gemma2-9b": (
        *("roles.b_raises_pointer", "binding.table.q.dR", "circuit.beats_random", "circuit.a_attends_to_object"),
        *("tracing.reference_box_not_from_context", "tracing.boxes_emerge_after_swap", "tracing.object_direct"),
        *("tracing.object_not_through_labels", "tracing.readout_over_swap_period", "tracing.prefix_effect_local"),
    ),
    "gemma3-12b": (
        "roles.b_raises_pointer",
        "binding.table.qk.dR",
        "circuit.recovers_accuracy",
        "circuit.c_attends_to_earlier_box",
    ),
    "llama3.2-3b": ("roles.llama3b_exception", "binding.table.k_both.dR", "circuit.not_a_floor"),
    "llama3.1-8b": ("roles.a_carries_content", "binding.table.k_box.dlogit", "circuit.beats_random"),
}
"""Rows that the paper asserts on a model, and whose printed numbers are far from their rival's, but for one."""
ALIKE = ("llama3.1-8b", "binding.table.k_box.dlogit")
"""-0.02 here and 0.04 in the other family: no number of prompts tells these apart."""


def quiet(name: WorldName, model: str) -> World:
    """A world with little spread: a row at its usual N is as sure as at a huge one. The spread of margins, and so the
    share of right answers, follows from the printed numbers."""
    base = world(name, model)
    return replace(base, spreads={key: value / 100 for key, value in base.spreads.items()})


@pytest.mark.parametrize(("model", "id"), [(model, id) for model, ids in ROWS.items() for id in ids])
def test_what_is_printed_replicates_and_its_rival_does_not(model: str, id: str) -> None:
    assert judge_row(id, make_study(quiet("paper", model))) == "REPLICATED"
    fails = judge_row(id, make_study(quiet("rival", model)))
    assert (fails == "REPLICATED") == ((model, id) == ALIKE)


@pytest.mark.parametrize(("name", "moves"), [("paper", False), ("rival", True)])
def test_an_unmeasured_token_has_no_effect_in_the_papers_world(name: WorldName, moves: bool) -> None:
    """The paper prints nothing about the other token that may have been read: its world has no effect there, and the
    rival's world the usual one. The evidence of the two tokens is drawn separately."""
    claim, study = row("binding.q_redirects").claim, make_study(quiet(name, "llama3.1-8b"))
    places = study.at_readouts(claim)
    measured, unmeasured = (float(shift(at_readout.binding(claim), "q", "dR").mean()) for at_readout in places.values())
    base = world(name, "llama3.1-8b").mean("binding.q.dR")
    assert abs(base) > 0.1
    assert measured == pytest.approx(base, abs=0.05)
    assert unmeasured == pytest.approx(base if moves else 0.0, abs=0.05)


@pytest.mark.parametrize("id", ["roles.b_is_the_pointer", "binding.q_redirects"])
def test_a_flipped_sign_turns_the_verdict(id: str) -> None:
    base = quiet("paper", "gemma2-9b")
    negated = replace(base, means={name: -mean if "." in name else mean for name, mean in base.means.items()})
    flipped = replace(negated, means=negated.means | {name: base.means[name] for name in base.means if _is_share(name)})
    assert judge_row(id, make_study(base)) == "REPLICATED"
    assert judge_row(id, make_study(flipped)) == "NOT REPLICATED"


def _is_share(name: str) -> bool:
    """Shares, margins and logits of answers stay: a model that cannot do the task is judged on nothing."""
    return name.startswith(("accuracy.", "margin.", "logit.")) or name.endswith(".switch")


def test_the_same_seed_gives_the_same_sample_and_another_one_another() -> None:
    id, base = "roles.a_lowers_content", world("paper", "gemma2-9b")
    claim = row(id).claim

    def sample(seed: int) -> pd.DataFrame:
        return make_study(base, seed=seed, samples=20).roles(claim, "content_control").rows

    assert sample(0).equals(sample(0))
    assert not sample(0).equals(sample(1))
    assert len({Run(base, seed).dice(purpose).random() for seed in (0, 1) for purpose in ("a", "b")}) == 4


def test_a_kind_without_a_maker_is_named() -> None:
    study = make_study(world("paper", "gemma2-9b"))
    with pytest.raises(NotSimulated, match=r"^crossings \(ours; a world would have to say "):
        judge_row("beyond.route_through_swap_labels", study)


def test_no_weights_are_loaded() -> None:
    loaded_model = make_study(world("paper", "gemma2-9b"))._model.loaded_model
    with pytest.raises(AssertionError, match="requested its weights"):
        _ = loaded_model.model


def test_every_candidate_requests_its_own_stages() -> None:
    """D by the query is another stage, and frozen heads are another setting; the stages before D are shared."""
    base = world("paper", "llama3.2-3b")
    study = make_study(base, samples=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TinyProbabilities)
        assert len(study.discoveries(HEADS_FOUND_AGAIN)) == 5
    paths = [request for request in study.log.evidence if isinstance(request, Paths)]
    counts = Counter((path.stage.group, path.stage.component, path.settings.frozen) for path in paths)
    noises = len(study.conventions(HEADS_FOUND_AGAIN).noise)
    for group, component in (("A", None), ("B", "q"), ("C", "v"), ("D", "kv")):
        assert (counts.pop((group, component, "none")), counts.pop((group, component, "all"))) == (noises, 1)
    assert counts == {("D", "q", "none"): 1, ("E", "v", "none"): noises + 1, ("E", "v", "all"): 1}


@pytest.mark.parametrize(("group", "outcome"), [("D", None), ("E", "NOT APPLICABLE")])
def test_an_empty_published_group_is_not_applicable(group: str, outcome: str | None) -> None:
    """After pruning gemma2-9b has one head in D and none in E."""
    study = make_study(quiet("paper", "gemma2-9b"))
    assert len(study.circuit.group(group)) == (0 if outcome else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TinyProbabilities)
        verdict = judge_row(f"circuit.heads_found_again.{group}.controlled", study)
    assert (verdict == "NOT APPLICABLE") == bool(outcome)


HARDER = Path(__file__).with_name("harder")
BOUND = 4 / np.sqrt(300)
"""Four standard errors of the correlation of 300 independent pairs."""


def paper(**spreads: float) -> World:
    """The paper's world with other spreads."""
    base = world("paper", "gemma2-9b")
    return replace(base, spreads={**base.spreads, **spreads})


def binding(condition: str, measure: str, study: Study) -> Array:
    return shift(study.binding(row("binding.qk_cancels").claim), condition, measure)


def group(name: str, study: Study) -> Array:
    return of_group(study.roles(row("roles.b_is_the_pointer").claim, "pointer"), name, "pointed_object")


def margin(which: VariantName, study: Study) -> Array:
    return of_circuit(study.ablate_circuit(row("circuit.near_full").claim), which, "margin")


def correlate(first: Array, second: Array) -> float:
    return float(np.corrcoef(first, second)[0, 1])


PAIRS: dict[str, tuple[Callable[[Study], Array], Callable[[Study], Array], float]] = {
    "logits of Q and K": (partial(binding, "q", "dlogit"), partial(binding, "k_both", "dlogit"), 1.0),
    "logits of Q and Q+K": (partial(binding, "q", "dlogit"), partial(binding, "qk", "dlogit"), -1.0),
    "groups A and B": (partial(group, "A"), partial(group, "B"), -1.0),
    "groups A and C": (partial(group, "A"), partial(group, "C"), 1.0),
    "full model and circuit": (partial(margin, "full"), partial(margin, "circuit"), -1.0),
}
"""Two conditions on the same prompts, and their correlation where that of the world is -1."""


@pytest.mark.parametrize(("first", "second", "opposed"), PAIRS.values(), ids=PAIRS)
def test_conditions_have_the_correlation_of_their_world(
    first: Callable[[Study], Array], second: Callable[[Study], Array], opposed: float
) -> None:
    def measure(correlation: float) -> float:
        study = make_study(paper(correlation=correlation))
        return correlate(first(study), second(study))

    assert abs(measure(0.0)) < BOUND
    assert measure(0.5) == pytest.approx(0.5, abs=BOUND)
    assert (measure(1.0), measure(-1.0)) == pytest.approx((1.0, opposed))


@pytest.mark.parametrize(("correlation", "low", "high"), [(0.0, -BOUND, BOUND), (1.0, 0.7, 1.0), (-1.0, -1.0, -0.7)])
def test_shifts_of_attention_are_correlated(correlation: float, low: float, high: float) -> None:
    """Heads switch or stay, so no correlation is exact."""
    study = make_study(paper(correlation=correlation))
    assert low <= correlate(binding("q", "dR", study), binding("qk", "dR", study)) <= high


@pytest.mark.parametrize(
    ("measure", "mean"),
    [
        (partial(binding, "qk", "dR"), -0.1305445897744562),
        (partial(binding, "qk", "dlogit"), 1.7528340468010626),
        (partial(group, "B"), 6.93029520169076),
        (partial(margin, "circuit"), 2.578553472330791),
    ],
    ids=["attention by Q+K", "logits of Q+K", "group B", "circuit"],
)
def test_without_a_correlation_the_same_numbers_are_drawn(measure: Callable[[Study], Array], mean: float) -> None:
    """The means of seed 0 before worlds had a correlation and a floor."""
    assert measure(make_study(paper())).mean() == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize(("floor", "gate"), [(0.12, None), (0.13, "noise_floor")])
def test_a_floor_of_more_than_half_of_the_margin_is_invalid(floor: float, gate: str | None) -> None:
    judged, study = row("binding.qk_cancels"), make_study(paper(floor=floor))
    verdict = judge_after_gates(judged.claim, study, judged.test)
    assert (verdict.gate, verdict.outcome == "INVALID") == (gate, gate is not None)


@pytest.mark.parametrize("measure", [partial(binding, "q", "dlogit"), partial(group, "B"), partial(margin, "circuit")])
def test_rounding_moves_every_prompt_alike_and_at_most_by_the_floor(measure: Callable[[Study], Array]) -> None:
    moved = measure(make_study(paper(floor=0.1))) - measure(make_study(paper()))
    assert np.ptp(moved) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < abs(moved[0]) <= 0.1


def test_factors_of_spreads_leave_correlation_and_floor() -> None:
    scaled = scale_spreads(paper(correlation=0.8, floor=0.1), 2.0).spreads
    assert (scaled["correlation"], scaled["floor"]) == (0.8, 0.1)


def test_the_file_doubles_every_declared_spread() -> None:
    spreads = read_world(HARDER / "doubled.toml").world("gemma2-9b").spreads
    assert spreads == scale_spreads(world("paper", "gemma2-9b"), 2.0).spreads
