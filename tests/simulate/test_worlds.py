"""Simulated evidence says what its world says: judged by the rows' own code, on each of the paper's models."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

from claims.catalogue import claim
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.paths.summary import TinyProbabilities
from rebinding.paper.worlds import NotSimulated, Run, World, WorldName, world
from tests.simulate.studies import row, study_in, verdict_in

AGAIN = claim("circuit.heads_found_again.D")
ROWS = {
    "gemma2-9b": (
        *("roles.b_small_on_content", "binding.table.q.dR", "circuit.beats_random", "circuit.a_attends_to_object"),
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
    """Hardly any spread, so a row at its usual N is as sure as at a huge one. What is printed alone sets how far
    margins spread, and so how many answers are right."""
    told = world(name, model)
    return replace(told, spreads={key: value / 100 for key, value in told.spreads.items()})


@pytest.mark.parametrize(("model", "id"), [(model, id) for model, ids in ROWS.items() for id in ids])
def test_what_is_printed_replicates_and_its_rival_does_not(model: str, id: str) -> None:
    assert verdict_in(id, study_in(quiet("paper", model))) == "REPLICATED"
    fails = verdict_in(id, study_in(quiet("rival", model)))
    assert (fails == "REPLICATED") == ((model, id) == ALIKE)


@pytest.mark.parametrize(("name", "moves"), [("paper", False), ("rival", True)])
def test_elsewhere_is_another_place(name: WorldName, moves: bool) -> None:
    """Of a token that may have been read besides nothing is printed: nothing is done there by what the paper says, and
    what the rival does anywhere it does there. What was made up of one place is not told of the other."""
    claim, study = row("binding.q_redirects").claim, study_in(quiet(name, "llama3.1-8b"))
    places = study.at_readouts(study.procedure(claim).binding)
    here, there = (float(shift(one.binding(claim), "q", "dR").mean()) for one in places.values())
    told = world(name, "llama3.1-8b").mean("binding.q.dR")
    assert abs(told) > 0.1
    assert here == pytest.approx(told, abs=0.05)
    assert there == pytest.approx(told if moves else 0.0, abs=0.05)


@pytest.mark.parametrize("id", ["roles.b_is_the_pointer", "binding.q_redirects"])
def test_a_flipped_sign_turns_the_verdict(id: str) -> None:
    told = quiet("paper", "gemma2-9b")
    turned = replace(told, means={name: -one if "." in name else one for name, one in told.means.items()})
    kept = replace(turned, means=turned.means | {name: told.means[name] for name in told.means if _is_share(name)})
    assert verdict_in(id, study_in(told)) == "REPLICATED"
    assert verdict_in(id, study_in(kept)) == "NOT REPLICATED"


def _is_share(name: str) -> bool:
    """Shares, margins and logits of answers stay: a model that cannot do the task is judged on nothing."""
    return name.startswith(("accuracy.", "margin.", "logit.")) or name.endswith(".switch")


def test_the_same_seed_gives_the_same_sample_and_another_one_another() -> None:
    id, told = "roles.a_lowers_content", world("paper", "gemma2-9b")
    claim = row(id).claim

    def sample(seed: int) -> pd.DataFrame:
        return study_in(told, seed=seed, samples=20).roles(claim, "content_control").rows

    assert sample(0).equals(sample(0))
    assert not sample(0).equals(sample(1))
    assert len({Run(told, seed).dice(what).random() for seed in (0, 1) for what in ("a", "b")}) == 4


def test_a_kind_without_a_maker_is_named() -> None:
    study = study_in(world("paper", "gemma2-9b"))
    with pytest.raises(NotSimulated, match=r"^crossings \(ours; a world would have to say "):
        verdict_in("beyond.route_through_swap_labels", study)


def test_no_weights_are_loaded() -> None:
    loaded_model = study_in(world("paper", "gemma2-9b"))._model.loaded_model
    with pytest.raises(AssertionError, match="requested its weights"):
        _ = loaded_model.model


def test_every_candidate_is_asked_what_it_stands_for() -> None:
    """D by the query is another stage, and what is frozen another setting; the stages before D are shared."""
    told = world("paper", "llama3.2-3b")
    study = study_in(told, samples=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TinyProbabilities)
        assert len(study.discoveries(AGAIN)) == 5
    paths = [one for one in study.log.evidence if isinstance(one, Paths)]
    asked = Counter((one.stage.group, one.stage.component, one.how.frozen) for one in paths)
    noises = len(study.conventions(AGAIN).noise)
    for group, component in (("A", None), ("B", "q"), ("C", "v"), ("D", "kv")):
        assert (asked.pop((group, component, "none")), asked.pop((group, component, "all"))) == (noises, 1)
    assert asked == {("D", "q", "none"): 1, ("E", "v", "none"): noises + 1, ("E", "v", "all"): 1}


@pytest.mark.parametrize(("group", "told"), [("D", None), ("E", "NOT APPLICABLE")])
def test_heads_of_a_group_that_the_paper_leaves_empty_cannot_be_found_again(group: str, told: str | None) -> None:
    """After pruning gemma2-9b has one head in D and none in E."""
    study = study_in(quiet("paper", "gemma2-9b"))
    assert len(study.circuit.group(group)) == (0 if told else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TinyProbabilities)
        verdict = verdict_in(f"circuit.heads_found_again.{group}.controlled", study)
    assert (verdict == "NOT APPLICABLE") == bool(told)
