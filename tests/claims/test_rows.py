"""The list of claims is whole: a test for every row of the truth table, and a row for every test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from rebinding.claim import Claim
from rebinding.planted.truth import truth_of

SECTIONS = ("tracing", "circuit", "roles", "binding", "robustness")


def claims() -> Iterator[Claim]:
    for section in SECTIONS:
        module = importlib.import_module(f"claims.test_{section}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()):
                if mark.name == "parametrize" and mark.args[0] == "claim":
                    yield from mark.args[1]


def test_every_row_is_judged_once() -> None:
    ids = [claim.id for claim in claims()]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(truth_of("pointer"))


@pytest.mark.parametrize("claim", tuple(claims()), ids=lambda claim: claim.id)
def test_every_claim_declares_how_it_is_judged(claim: Claim) -> None:
    assert claim.says.endswith(".")
    assert claim.source
    assert claim.where
    assert claim.statistic
    assert all(margin > 0 for margin in claim.margins.values())
