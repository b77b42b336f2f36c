"""Scores of a cell, names of its token, and the summaries, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence, EvidenceError
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.rows import names_of, scores
from rebinding.experiments.tracing.summary import by_role, by_token, effects, normalised
from tests.tracing.naive import plain


def pair(answer: int, rival: int | None) -> TracedPair:
    return TracedPair(0, plain(torch.tensor([1, 2])), plain(torch.tensor([1, 3])), (10, 11, 12), answer, rival)


def score(logits: list[float], *, answer: int, rival: int | None = 13) -> dict[str, object]:
    table = torch.tensor(logits)[None, None, None]  # (prompt, layer, token, candidate)
    return {name: value.item() for name, value in scores([pair(answer, rival)], table).items()}


@pytest.mark.parametrize(
    ("logits", "answer", "hit", "with_rival", "margin", "rival_margin"),
    [
        ([3.0, 1.0, 2.0, 0.0], 0, True, True, 1.0, 3.0),
        ([3.0, 1.0, 2.0, 5.0], 0, True, False, 1.0, -2.0),
        ([3.0, 1.0, 2.0, 0.0], 2, False, False, -1.0, 2.0),
        ([3.0, 3.0, 2.0, 0.0], 0, True, True, 0.0, 3.0),  # a tie goes to the first, as published
        ([3.0, 3.0, 2.0, 0.0], 1, False, False, 0.0, 3.0),
    ],
)
def test_scores(
    logits: list[float], answer: int, hit: bool, with_rival: bool, margin: float, rival_margin: float
) -> None:
    got = score(logits, answer=answer)
    assert got["hit"] is hit
    assert got["hit_with_counterfactual"] is with_rival
    assert (got["margin"], got["counterfactual_margin"]) == (margin, rival_margin)
    assert got["answer_logit"] == logits[answer]


def test_without_a_counterfactual_answer() -> None:
    """The rival's column repeats the answer: it wins nothing, and there is no margin over it."""
    got = score([3.0, 1.0, 2.0, 3.0], answer=0, rival=None)
    assert got["hit_with_counterfactual"] is True
    assert math.isnan(float(str(got["counterfactual_margin"])))


def test_names_of_tokens() -> None:
    roles = {
        "context_box[0]": 1,
        "context_object[0]": 2,
        "swap_first": 4,
        "readout": 6,
        "context_asked": 1,
        "context_asked_object": 2,
        "context_answer_object": 2,
    }
    places, names = names_of(roles, range(7))
    assert places == ["", "context_box[0]", "context_object[0]", "", "swap_first", "", "readout"]
    assert names == ["", "context_asked", "context_asked_object", "", "swap_first", "", "readout"]


@pytest.mark.parametrize(("iia", "base", "value"), [(0.75, 0.5, 0.5), (1, 0.2, 1), (0.2, 0.2, 0), (0.1, 0.5, -0.8)])
def test_normalised(iia: float, base: float, value: float) -> None:
    assert normalised(iia, base) == pytest.approx(value)


def test_nothing_to_restore() -> None:
    assert math.isnan(normalised(1.0, 1.0))


def evidence(changes_answer: bool = True) -> Evidence:
    """Two pairs, one layer, two tokens; a role stands at token 0 in one pair and at token 1 in the other."""
    table = pd.DataFrame(
        {
            "prompt": [0, 0, 1, 1],
            "layer": 0,
            "token": [0, 1, 0, 1],
            "role": ["readout", "", "", "readout"],
            "place": ["readout", "", "", "readout"],
            "hit": [True, False, False, True],
            "base_hit": [False, False, False, False],
            "margin": [1.0, 0.0, 0.0, 3.0],
            "base_margin": 0.0,
            "ran": True,
            "differs": True,
        }
    ).astype({"role": "category", "place": "category"})
    return Evidence("tracing", table, {"mode": "m", "changes_answer": changes_answer})


def test_by_role_follows_the_role_and_by_token_the_token() -> None:
    token, role = by_token(evidence()), by_role(evidence())
    assert token["iia"].tolist() == [0.5, 0.5]
    assert token["role"].tolist() == ["readout", "readout"]
    assert role[["role", "iia", "margin", "pairs"]].to_numpy().tolist() == [["readout", 1.0, 2.0, 2]]


def test_effects_average_to_the_normalised_number() -> None:
    table = evidence().rows.assign(base_hit=[True, True, False, False], hit=[True, False, True, False])
    gains = effects(Evidence("tracing", table, {}), "readout")
    assert gains.shape == (1, 2)
    assert np.mean(gains.to_numpy()) == pytest.approx(normalised(0.5, 0.5))
    with pytest.raises(EvidenceError, match=r"no token has the role 'swap_first'.*readout"):
        effects(evidence(), "swap_first")


def test_claims_refuse_a_mode_that_leaves_the_answer() -> None:
    for judge in (by_role, lambda one: effects(one, "readout")):
        with pytest.raises(EvidenceError, match="leaves the answer as it is"):
            judge(evidence(changes_answer=False))
    assert len(by_token(evidence(changes_answer=False))) == 2
