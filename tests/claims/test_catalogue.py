"""Every sentence of the catalogue is judged, under its procedures, for its models, by its kind of rule; what is not
built yet is named."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from claims.catalogue import catalogue_of_runs, claims
from rebinding.paper.claim import Claim, margin_of
from rebinding.paper.numbers import tolerance
from rebinding.paper.procedure import builtin_procedure

FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
ABSENT: dict[str, str] = FILE["absent"]
JUDGED: dict[str, Claim] = {claim.id: claim for claim in (*claims(), *(row.claim for row in catalogue_of_runs()))}
"""Rows of one model, and those of a run over several."""
Expectation = tuple[str, str, frozenset[str]]
"""Procedure, kind of rule, models of which the row is asserted."""


def expanded(text: str) -> Iterator[str]:
    """`a.{b,c}` is a.b and a.c."""
    parts = [part.split("}") for part in text.split("{")]
    (before,), choices = parts[0], [part[0].split(",") for part in parts[1:]]
    for options in product(*choices):
        yield before + "".join(option + part[1] for option, part in zip(options, parts[1:], strict=True))


def expected_rows() -> dict[str, Expectation]:
    """Every row of the catalogue by its full id."""
    entries: dict[str, Expectation] = {}
    for text, row in FILE["rows"].items():
        models = frozenset(FILE["models"][name] for name in row["of"].split())
        procedures = row["by"].split()
        for sentence, procedure in product(expanded(text), procedures):
            has_both = procedure == "controlled" and len(procedures) > 1
            id = f"{sentence}.controlled" if has_both else sentence
            assert id not in entries, f"{id} stands in the catalogue twice"
            entries[id] = procedure, row["kind"], frozenset() if has_both else models
    return entries


EXPECTED = expected_rows()


def test_braces_are_alternatives() -> None:
    assert list(expanded("a.{,b.}c.{d,e}")) == ["a.c.d", "a.c.e", "a.b.c.d", "a.b.c.e"]
    assert list(expanded("plain")) == ["plain"]


@pytest.mark.parametrize("id", sorted(EXPECTED.keys() - ABSENT.keys()))
def test_a_row_is_judged_as_the_catalogue_has_it(id: str) -> None:
    assert id in JUDGED, "build it, or name it under [absent] in catalogue.toml with what it waits for"
    claim = JUDGED[id]
    assert (claim.procedure, claim.kind, frozenset(claim.models)) == EXPECTED[id]


def test_nothing_is_judged_that_the_catalogue_does_not_have() -> None:
    assert JUDGED.keys() <= EXPECTED.keys()


def test_absent_rows_are_in_the_catalogue_and_not_judged() -> None:
    """A row that is built leaves the list of absent ones; and one that was taken out of the catalogue does too."""
    assert not ABSENT.keys() & JUDGED.keys()
    assert ABSENT.keys() <= EXPECTED.keys()
    assert all(ABSENT.values())


def test_margins_are_those_of_the_catalogue() -> None:
    """Every kind of quantity that some row measures, and each with a reason that the code gives too."""
    measured = {metric for claim in JUDGED.values() if claim.kind != "report" for metric in claim.metrics}
    margins = FILE["margins"]
    assert measured == margins.keys()
    for metric, margin in margins.items():
        assert margin["by"] in ("words", "table", "code", "prompts", "rounding")
        assert margin_of(metric) == margin["absolute"]
        if metric not in ("probability", "contribution"):  # which are declared beside the claims
            declared = tolerance(metric)
            assert (declared.relative, bool(declared.reason)) == (margin["relative"], True)


def test_a_boundary_of_ours_is_asserted_of_no_model() -> None:
    for text, boundary in FILE["boundaries"].items():
        assert boundary["why"]
        assert boundary["by"] in ("words", "size", "chance", "ours")
        for sentence in expanded(text):
            rows = [claim for claim in JUDGED.values() if claim.sentence == sentence]
            assert rows, sentence
            assert boundary["by"] != "ours" or not any(claim.models for claim in rows), sentence


def test_candidates_are_those_of_the_catalogue() -> None:
    """One convention differs at a time, about the released one; a controlled row runs one of each."""
    published, controlled = builtin_procedure("published"), builtin_procedure("controlled")
    expected = FILE["candidates"]
    lists = {name: value for name, value in expected.items() if isinstance(value, list) and "." in name}
    for name, choices in lists.items():
        section, _, convention = name.partition(".")
        assert list(getattr(getattr(published, section), convention)) == choices
        assert len(getattr(getattr(controlled, section), convention)) == 1
    roles = [[*conventions.possible.values()] for conventions in (published.roles, controlled.roles)]
    assert [f"{candidate.places} {candidate.direction} {candidate.pointer}" for candidate in roles[0]] == expected[
        "roles"
    ]
    assert len(roles[1]) == 1
    for section in ("roles", "binding"):
        assert getattr(published, section).readout == expected[f"{section}.readout"]
    assert published.binding.switch == expected["binding.switch"]
    discoveries = published.circuit.candidates.values()
    first = next(iter(discoveries))
    changed = [
        sum(getattr(discovery, name) != getattr(first, name) for name in ("noise", "frozen", "d_received_by"))
        for discovery in discoveries
    ]
    assert changed == [0, 1, 1, 1, 1]
