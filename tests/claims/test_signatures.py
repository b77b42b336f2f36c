"""The two signatures of section 5 on tables of means: each verdict is written beside its means, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import conventions, signatures
from claims import test_binding_signatures as of_signatures
from claims.catalogue import claim
from claims.signatures import judge_signature, key_dominated, levels, matching
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import builtin_procedure
from rebinding.verdicts import Outcome, Verdict, require
from rebinding.verdicts.gates import requirement
from rebinding.verdicts.sentences import Part

N = 300
CANCELS, DOMINANCE = claim("binding.qk_cancels"), claim("binding.key_dominance")
Means = tuple[float, float, float]
"""dR of the query's shift, of the keys' and of both."""
NO = "NOT REPLICATED"
TABLES: Mapping[str, tuple[Means, Outcome, Outcome]] = {
    "exact cancellation": ((2.0, 2.0, 0.0), "REPLICATED", NO),
    "a tenth of the margin is left": ((2.0, 2.0, 0.02), "REPLICATED", NO),
    "less than a quarter is left": ((2.66, 2.08, 0.4), "REPLICATED", NO),
    "a reversal of most of it": ((2.66, 2.08, -2.5), NO, NO),
    "a reversal of three quarters": ((0.8, 0.8, -0.6), NO, NO),
    "between a quarter and a half": ((2.66, 2.08, 0.85), NO, NO),
    "half is left of two small shifts": ((0.3, 0.3, 0.17), NO, NO),
    "the query alone turns nothing": ((0.0, 2.0, 0.0), NO, NO),
    "the keys alone turn nothing": ((2.0, 0.0, 0.0), NO, NO),
    "more than half of the keys is left": ((0.8, 2.0, 1.2), NO, "REPLICATED"),
    "the query is reversed and weak": ((-0.46, 1.36, 1.1), NO, "REPLICATED"),
    "the query is as strong as the keys": ((2.0, 2.0, 2.0), NO, NO),
    "the query is two thirds of the keys": ((1.1, 1.5, 1.2), NO, NO),
    "the query is reversed and strong": ((-1.5, 1.6, 1.2), NO, NO),
    "less than half of the keys remains": ((0.0, 2.0, 0.8), NO, NO),
    "keys lead by less than the margin": ((0.0, 0.15, 0.15), NO, NO),
    "nothing turns attention": ((0.0, 0.0, 0.0), NO, NO),
    "a strong query and both together left": ((2.5, 0.1, 0.5), NO, NO),
}
"""Means, and the verdicts on cancellation and on key dominance, on a model of which the paper says neither."""


def study_of(means: Mapping[str, Means | None], monkeypatch: pytest.MonkeyPatch, *, scatter: float = 0.3) -> Any:
    """A study with these means at each readout token; None: not judged there."""
    noise = np.linspace(-1, 1, N) * scatter

    def shift(of: Means, condition: str, measure: str) -> Any:
        place = {"q": 0, "k_both": 1, "qk": 2}[condition]
        return of[place] + np.roll(noise, 7 * place)

    def binding(of: Means | None, _: Claim) -> Means:
        require(requirement("there", of is not None, "nothing is known here"))
        assert of is not None
        return of

    monkeypatch.setattr(signatures, "shift", shift)
    monkeypatch.setattr(signatures, "with_text", lambda verdict, evidence: verdict)
    monkeypatch.setattr(signatures, "with_attention", lambda claim, verdict, readouts: verdict)
    places = {name: SimpleNamespace(paper_model=None, binding=partial(binding, of)) for name, of in means.items()}
    return SimpleNamespace(
        procedure=lambda row: builtin_procedure(row.procedure),
        at_readouts=lambda claim: places,
        has_one_kv_head=False,
    )


def judge_both(study: Any) -> tuple[Verdict, Verdict]:
    return (
        judge_signature(CANCELS, study, own=matching, other=key_dominated),
        judge_signature(DOMINANCE, study, own=key_dominated, other=matching),
    )


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_means_has_its_verdicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    means, cancels, dominated = TABLES[name]
    verdicts = judge_both(study_of({"here": means}, monkeypatch))
    assert tuple(verdict.outcome for verdict in verdicts) == (cancels, dominated)
    (own,), (other,) = (verdict.conventions for verdict in verdicts)
    assert own.shows_other == (dominated == "REPLICATED")
    assert other.shows_other == (cancels == "REPLICATED")


def test_no_table_shows_both_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the means: below half of the keys' shift, or above."""
    dice = np.random.default_rng(0)
    for means in dice.normal(0, 1.5, (60, 3)):
        verdicts = judge_both(study_of({"here": tuple(means)}, monkeypatch))
        assert [verdict.outcome for verdict in verdicts].count("REPLICATED") < 2


PARTS = {
    "attention by q": (0.0, 2.0, -0.15),
    "attention by k_both": (2.0, 0.0, -0.15),
    "less than half of q is left": (0.3, 2.0, 0.19),
    "less than half of k_both is left": (2.0, 0.3, 0.19),
    "little is left toward slot j": (2.0, 2.0, 0.7),
    "little is left toward slot i": (2.0, 2.0, -0.7),
}
"""Means of which one part of cancellation alone is false."""
PARTS_OF_DOMINANCE = {
    "keys over query": (0.1, 0.25, 0.25),
    "keys over query, reversed": (-0.1, 0.25, 0.25),
    "query below half": (1.2, 2.0, 1.5),
    "query below half, reversed": (-1.2, 2.0, 1.5),
    "both together": (0.0, 0.35, 0.18),
    "more than half remains": (0.0, 2.0, 0.8),
}


@pytest.mark.parametrize("name", [*PARTS, *PARTS_OF_DOMINANCE])
def test_each_part_alone_refutes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this part the row would be REPLICATED: every part is needed."""
    is_matching = name in PARTS
    row, parts = (CANCELS, matching) if is_matching else (DOMINANCE, key_dominated)
    study = study_of({"here": (PARTS | PARTS_OF_DOMINANCE)[name]}, monkeypatch, scatter=0.02)
    verdict = judge_signature(row, study, own=parts, other=parts)
    assert (verdict.outcome, verdict.part[:1]) == (NO, (name,))

    def without(*arguments: Any) -> dict[str, Any]:
        return {part: rule for part, rule in parts(*arguments).items() if part != name}

    assert judge_signature(row, study, own=without, other=parts).outcome == "REPLICATED"


def test_conventions_share_the_level() -> None:
    assert levels(("released",)) == {"released": 0.05}
    assert levels(("released", "b", "c")) == pytest.approx({"released": 0.04, "b": 0.005, "c": 0.005})


@pytest.mark.parametrize(
    ("here", "there", "cancels", "dominated"),
    [
        ((2.0, 2.0, 0.0), (0.0, 2.0, 2.0), "INCONCLUSIVE", "INCONCLUSIVE"),  # conventions disagree
        ((2.0, 2.0, 0.0), (0.0, 0.0, 0.0), "REPLICATED", NO),
        ((0.0, 0.0, 0.0), (2.0, 2.0, 0.0), "REPLICATED", NO),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), NO, NO),
        ((0.0, 0.0, 0.0), None, "INCONCLUSIVE", "INCONCLUSIVE"),  # one is not judged
        (None, (0.0, 2.0, 2.0), "INCONCLUSIVE", "REPLICATED"),
        (None, None, "INVALID", "INVALID"),
    ],
)
def test_conventions_are_chosen_once(
    here: Means | None, there: Means | None, cancels: Outcome, dominated: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = judge_both(study_of({"here": here, "there": there}, monkeypatch))
    assert tuple(verdict.outcome for verdict in verdicts) == (cancels, dominated)
    if here == (2.0, 2.0, 0.0) and there == (0.0, 2.0, 2.0):
        assert "conventions disagree: here shows it, there the other family's signature" in verdicts[0].reason
        assert all(verdict.unidentified for verdict in verdicts)


N_PROMPTS = 6


def test_parts_that_the_text_cites_for_one_model_apply_to_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And to the row of which the paper says them, not to the same parts as the other family's signature."""
    monkeypatch.setattr(signatures, "shift", lambda *_: np.full(N_PROMPTS, 0.5))
    monkeypatch.setattr(signatures, "controls", lambda _: ("random_q", "random_k"))

    def read_parts(model: str | None, row: Claim = CANCELS) -> dict[str, Part]:
        study: Any = SimpleNamespace(paper_model=model)
        return matching(row, study, None)

    common = set(read_parts(None))
    assert set(read_parts("gemma3-12b")) - common == {"answer by both"}
    assert set(read_parts("gemma2-9b")) - common == {"nearer to random"}
    near: Any = read_parts("gemma2-9b")["nearer to random"]
    assert set(near.args[1]) == {"random_q", "random_k"}
    controlled = claim("binding.qk_cancels.controlled")
    for model in ("gemma2-9b", "gemma3-12b"):
        assert set(read_parts(model, DOMINANCE)) == set(read_parts(model, controlled)) == common


def test_the_reported_signature_names_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured value is the keys' dR less the query's, and N the number of prompts, not of sets of directions."""

    def shift(study: Any, condition: str, measure: str) -> Any:
        means = {"q": study.query, "qk": study.both, "k_both": 3.0}
        return np.full((5, N_PROMPTS), means.get(condition, 0.0)) + np.linspace(-0.1, 0.1, N_PROMPTS)

    for module in (of_signatures, signatures):
        monkeypatch.setattr(module, "shift", shift)
    monkeypatch.setattr(conventions, "attention_by_head", lambda study: f"{study.query:.0f} of each head")
    keys, both = SimpleNamespace(query=0.0, both=3.0), SimpleNamespace(query=3.0, both=0.0)
    for place in (keys, both):
        place.paper_model = None
        place.binding = partial(lambda value, claim: value, place)
    keys.has_one_kv_head = False
    keys.procedure = lambda row: builtin_procedure(row.procedure)
    keys.at_readouts = lambda _: {"here": keys, "there": both}
    verdict = of_signatures.test_the_signature(claim("binding.signature"), keys)
    assert verdict.finding == "key-dominated here, matching there"
    assert verdict.reason.endswith("; here, 0 of each head; there, 3 of each head")
    assert verdict.measured == pytest.approx(3.0)
    assert verdict.n == N_PROMPTS
