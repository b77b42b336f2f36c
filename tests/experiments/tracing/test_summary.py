"""Scores of a cell, names of its token, and the summaries, on numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from rebinding.evidence import Evidence, EvidenceError
from rebinding.experiments.tracing.maps import TracedPair, names_of, scores
from rebinding.experiments.tracing.summary import (
    by_role,
    by_token,
    context_contribution,
    first_layer,
    gains,
    gains_by_place,
    last_layer,
    leading,
    margin_change,
    normalised,
    support,
)
from rebinding.paper.procedure import TracingConventions, builtin_procedure
from tests.experiments.setup import fake_prompts


def score(logits: list[float], *, answer: int, rival: int | None = 13) -> dict[str, object]:
    sides = fake_prompts(torch.tensor([[1, 2], [1, 3]]), {"readout": 1})
    pair = TracedPair(0, *sides, (10, 11, 12), answer, rival)
    table = torch.tensor(logits)[None, None, None]  # (prompt, layer, token, candidate)
    return {name: value.item() for name, value in scores([pair], table).items()}


@pytest.mark.parametrize(
    ("logits", "answer", "hits", "margins"),
    [
        ([3.0, 1.0, 2.0, 0.0], 0, (True, True), (1.0, 3.0)),
        ([3.0, 1.0, 2.0, 5.0], 0, (True, False), (1.0, -2.0)),
        ([3.0, 1.0, 2.0, 0.0], 2, (False, False), (-1.0, 2.0)),
        ([3.0, 3.0, 2.0, 0.0], 0, (True, True), (0.0, 3.0)),  # a tie goes to the first, as published
        ([3.0, 3.0, 2.0, 0.0], 1, (False, False), (0.0, 3.0)),
    ],
)
def test_scores_with_and_without_the_counterfactuals_answer(
    logits: list[float], answer: int, hits: tuple[bool, bool], margins: tuple[float, float]
) -> None:
    actual = score(logits, answer=answer)
    assert (actual["hit"], actual["hit_with_counterfactual"]) == hits
    assert (actual["margin"], actual["counterfactual_margin"]) == margins
    assert actual["answer_logit"] == logits[answer]


@pytest.mark.parametrize("rival", [None, 10])
def test_a_copy_of_the_answer_that_is_rounded_higher_wins_nothing(rival: int | None) -> None:
    """The rival's column is computed in another product; here it is one unit in the last place above the answer's."""
    actual = score([3.0, 1.0, 2.0, float(np.nextafter(np.float32(3), np.float32(4)))], answer=0, rival=rival)
    assert (actual["hit"], actual["hit_with_counterfactual"]) == (True, True)


def test_score_without_a_counterfactual_answer() -> None:
    """The rival's column repeats the answer: it wins nothing, and there is no margin over it."""
    actual = score([3.0, 1.0, 2.0, 3.0], answer=0, rival=None)
    assert actual["hit_with_counterfactual"] is True
    assert math.isnan(float(str(actual["counterfactual_margin"])))


def test_token_names_follow_the_roles() -> None:
    roles = {
        "context_box[0]": 1, "context_object[0]": 2, "swap_first": 4, "readout": 6, "context_asked": 1,
        "context_asked_object": 2, "context_answer_object": 2,
    }  # fmt: skip
    places, names = names_of(roles, range(7))
    assert places == ["", "context_box[0]", "context_object[0]", "", "swap_first", "", "readout"]
    assert names == ["", "context_asked", "context_asked_object", "", "swap_first", "", "readout"]


def test_normalised_gains_are_shares_of_what_can_be_restored() -> None:
    shares = [normalised(*pair) for pair in ((0.75, 0.5), (1, 0.2), (0.2, 0.2), (0.1, 0.5))]
    assert shares == pytest.approx([0.5, 1, 0, -0.8])
    assert math.isnan(normalised(1.0, 1.0))


def evidence(changes_answer: bool = True) -> Evidence:
    """Two pairs, one layer, two tokens; a role stands at token 0 in one pair and at token 1 in the other."""
    at_role = [True, False, False, True]
    names = ["readout" if is_there else "" for is_there in at_role]
    columns = {"layer": 0, "base_hit": False, "base_margin": 0.0, "ran": True, "differs": True}
    table = pd.DataFrame(
        {
            "prompt": [0, 0, 1, 1], "token": [0, 1, 0, 1], "role": names, "place": names, "hit": at_role,
            "margin": [1.0, 0.0, 0.0, 3.0], **columns,
        }
    ).astype({"role": "category", "place": "category"})  # fmt: skip
    return Evidence("tracing", table, {"mode": "m", "changes_answer": changes_answer})


def test_by_role_follows_the_role_and_by_token_the_token() -> None:
    token, role = by_token(evidence()), by_role(evidence())
    assert token["iia"].tolist() == [0.5, 0.5]
    assert token["role"].tolist() == ["readout", "readout"]
    assert role[["role", "iia", "margin", "pairs"]].to_numpy().tolist() == [["readout", 1.0, 2.0, 2]]


def conventions(**changes: str) -> TracingConventions:
    return replace(builtin_procedure("published").tracing, **changes)  # type: ignore[arg-type]  # each is one of its choices


def cells(leads: dict[str, list[list[int]]], base: tuple[int, int] = (0, 0)) -> Evidence:
    """Two pairs and layers 0, 1, 2, ...; for each role in which layers (of each pair) the answer is back.

    `margin` says the same as `hit`, by a logit; against the counterfactual's answer it is half a logit less."""
    hits = [
        (prompt, layer, token, role, bool(hit), bool(base[prompt]))
        for token, (role, values) in enumerate(leads.items())
        for prompt, line in enumerate(values)
        for layer, hit in enumerate(line)
    ]
    table = pd.DataFrame(hits, columns=["prompt", "layer", "token", "role", "hit", "base_hit"])
    table["place"] = table["role"]
    for prefix in ("", "base_"):
        hit = table[f"{prefix}hit"]
        table[f"{prefix}hit_with_counterfactual"] = hit
        table[f"{prefix}margin"], table[f"{prefix}counterfactual_margin"] = 2.0 * hit - 1.0, 2.0 * hit - 1.6
    return Evidence("tracing", table, {"mode": "m"})


def test_gains_skip_the_first_layer_and_subtract_the_base() -> None:
    result = cells({"readout": [[1, 1, 0], [1, 0, 1]]}, base=(1, 0))
    assert gains(result, "readout", conventions()).to_numpy().tolist() == [[0, 0], [-1, 1]]
    assert gains(result, "readout", conventions(scale="normalised")).to_numpy().tolist() == [[0, 0], [-2, 2]]
    assert np.mean(gains(result, "readout", conventions(scale="normalised")).loc[2]) == pytest.approx(
        normalised(0.5, 0.5)
    )
    assert support(result, conventions()) == (-1, 1)
    assert support(result, conventions(scale="normalised")) == (-2, 2)
    assert gains_by_place(result, conventions(), "readout", "readout").shape == (4, 2)
    with pytest.raises(EvidenceError, match=r"no token has the role 'swap_first'.*readout"):
        gains(result, "swap_first", conventions())


def test_gains_are_zero_if_nothing_can_be_restored() -> None:
    """A counterfactual that always gives the original's answer leaves no room: gains are 0, not 0 of 0."""
    result, options = cells({"readout": [[1, 1, 1], [1, 1, 1]]}, base=(1, 1)), conventions(scale="normalised")
    assert gains(result, "readout", options).to_numpy().tolist() == [[0, 0], [0, 0]]
    assert support(result, options) == (-1, 1)


def test_leading_answer_depends_on_the_procedure() -> None:
    """A lead of 0.4 over the counterfactual's answer is a lead, and not a clear one."""
    result = cells({"readout": [[1, 1], [1, 1]]})
    for changes, expected in (
        ({}, 1.0),
        ({"lead": "clear"}, 1.0),
        ({"candidates": "with_counterfactual"}, 1.0),
        ({"candidates": "with_counterfactual", "lead": "clear"}, 0.0),
    ):
        assert leading(result, conventions(**changes))["lead"].unique().tolist() == [expected], changes
    without_answer = result.rows.assign(counterfactual_margin=float("nan"), margin=0.4)
    tied = leading(Evidence("tracing", without_answer, {}), conventions())
    assert tied["lead"].unique().tolist() == [0.0], "ties are noise"


def test_first_and_last_layers_by_prompt() -> None:
    result = cells({"own": [[1, 1, 0, 1], [1, 0, 0, 0]], "other": [[0, 0, 1, 1], [0, 0, 0, 0]]})
    assert first_layer(result, conventions(), "own").tolist() == [1, 4]
    assert first_layer(result, conventions(), "other").tolist() == [2, 4]
    assert first_layer(result, conventions(), "other", "own").tolist() == [1, 4]
    assert last_layer(result, conventions(), "own").tolist() == [3, 0]


def test_contribution_of_the_context_is_what_both_labels_add_to_the_swaps() -> None:
    """By prompt; where gains are normalised, in shares of the prompts that have something to restore, here half."""
    rows = cells({name: [[0, 1, 0], [0, 1, 1]] for name in ("context", "swap", "both")}, base=(1, 0)).rows
    rows.loc[(rows["role"] == "swap") & (rows["prompt"] == 1), ["hit", "margin"]] = [False, -1.0]
    result = Evidence("first-mention", rows.assign(patched=rows["role"]).query("layer > 0"), {"mode": "m"})
    assert context_contribution(result, conventions()).tolist() == [[0, 1], [0, 1]]
    assert context_contribution(result, conventions(scale="normalised")).tolist() == [[0, 2], [0, 2]]


def test_rules_read_all_layers_or_all_but_the_last_sixth() -> None:
    spans = [(0, 11), (0, 9), (0, 1), (3, 3), (11, 11)]
    rows = [
        {"prompt": 0, "question": "asked", "place": place, "first": first, "last": last, "change": 100.0 * first + last}
        for place in ("readout", "swap_period")
        for first, last in spans
    ]
    result = Evidence("readout-diagnostic", pd.DataFrame(rows), {})
    assert margin_change(result, "readout", "every_layer")["asked"].tolist() == [11]
    assert margin_change(result, "readout", "not_the_last")["asked"].tolist() == [9]


def test_a_mode_that_leaves_the_answer_is_refused_for_claims() -> None:
    for judge in (by_role, lambda item: gains(item, "readout", conventions())):
        with pytest.raises(EvidenceError, match="leaves the answer as it is"):
            judge(evidence(changes_answer=False))
    assert len(by_token(evidence(changes_answer=False))) == 2
