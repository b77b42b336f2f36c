"""Rows about the whole run are judged on sample k of every model together, by their own test."""

from __future__ import annotations

import json
from typing import Any

from claims.catalogue import claim
from fixtures.cross_model import Samples, rates_of_runs, supports_run_claim
from fixtures.dry_runs import Simulation
from rebinding.paper.numbers import ALIASES
from rebinding.simulate.worlds import Run, world
from rebinding.study.model_spec import parse_model
from rebinding.verdicts import Outcome, Verdict
from rebinding.verdicts.outcome import ConventionVerdict

MODELS = [parse_model(name) for name in ALIASES]
ROW_BY_FAMILY = {"gemma": "binding.qk_cancels", "llama": "binding.key_dominance"}


def samples(outcomes: dict[str, list[Outcome]], p_value: float = 0.001) -> dict[tuple[str, str], Samples]:
    """What each model shows in the samples of the paper's world; REPLICATED in all three where nothing is said."""
    by_model = {}
    for model in MODELS:
        model_samples = Samples()
        for seed, outcome in enumerate(outcomes.get(model.name, ["REPLICATED"] * 3)):
            convention = ConventionVerdict(
                "as released", outcome, False, p_value if outcome == "NOT REPLICATED" else None
            )
            own = () if outcome == "INVALID" else (convention,)
            verdict = Verdict("effect", outcome, "", p_value=p_value, conventions=own)
            model_samples.add(Run(world("paper", model.name), seed), verdict)
        by_model[ROW_BY_FAMILY[str(model.family)], model.name] = model_samples
    return by_model


def counts(outcomes_by_model: dict[tuple[str, str], Samples]) -> dict[str, Any]:
    """What the row of the run comes to."""
    rates = {row.row: row for row in rates_of_runs(outcomes_by_model, MODELS, Simulation(("paper",), 3, 0))}
    return dict(rates["binding.families_differ"].outcomes["paper"])


def test_refuted_model_refutes_its_own_sample() -> None:
    assert counts(samples({})) == {"REPLICATED": 3}
    outcomes_by_model = samples({"llama3.2-3b": ["REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"]})
    assert counts(outcomes_by_model) == {"REPLICATED": 1, "NOT REPLICATED": 1, "INCONCLUSIVE": 1}


def test_a_part_that_is_hardly_refuted_leaves_the_sentence_open() -> None:
    """At 5 % / 4 parts."""
    refuted: dict[str, list[Outcome]] = {"gemma2-9b": ["NOT REPLICATED"] * 3}
    assert counts(samples(refuted, p_value=0.01)) == {"NOT REPLICATED": 3}
    assert counts(samples(refuted, p_value=0.02)) == {"INCONCLUSIVE": 3}


def test_a_run_of_one_family_has_no_such_row() -> None:
    gemma = {key: value for key, value in samples({}).items() if key[0] == ROW_BY_FAMILY["gemma"]}
    assert rates_of_runs(gemma, MODELS, Simulation(("paper",), 3, 0)) == []


def test_verdicts_travel_as_json() -> None:
    model_samples = samples({"gemma2-9b": ["REPLICATED", "INVALID"]})["binding.qk_cancels", "gemma2-9b"]
    loaded = Samples.read(json.loads(model_samples.plain()))
    assert loaded.plain() == model_samples.plain()
    assert loaded.verdicts["paper"][0].conventions == model_samples.verdicts["paper"][0].conventions != ()
    assert [verdict.outcome for verdict in loaded.verdicts["paper"].values()] == ["REPLICATED", "INVALID"]


def test_evidence_of_a_row_depends_on_the_family() -> None:
    gemma, llama = parse_model("gemma2-9b"), parse_model("llama3.1-8b")
    for id in ("binding.qk_cancels", "binding.qk_cancels.controlled"):
        assert supports_run_claim(claim(id), gemma)
        assert not supports_run_claim(claim(id), llama)
    assert supports_run_claim(claim("binding.key_dominance"), llama)
    assert not supports_run_claim(claim("binding.q_redirects"), gemma)
