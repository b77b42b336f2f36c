"""Every sentence of the catalogue is judged, under its procedures, for its models, by its kind of rule; what is not
built yet is named."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rebinding.paper.claim import CONTROLLED, Claim
from rebinding.paper.rows.binding import FAMILIES
from rebinding.power.rows import claims

FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
ABSENT: dict[str, str] = FILE["absent"]
JUDGED: dict[str, Claim] = {claim.id: claim for claim in (*claims(), *FAMILIES)}
"""Rows of one model, and those of a run over several."""
Wanted = tuple[str, str, frozenset[str]]
"""Procedure, kind of rule, models of which the row is asserted."""


def expanded(text: str) -> Iterator[str]:
    """`a.{b,c}` is a.b and a.c."""
    parts = [part.split("}") for part in text.split("{")]
    (before,), choices = parts[0], [part[0].split(",") for part in parts[1:]]
    for chosen in product(*choices):
        yield before + "".join(one + part[1] for one, part in zip(chosen, parts[1:], strict=True))


def wanted() -> dict[str, Wanted]:
    """Every row of the catalogue by its full id."""
    found: dict[str, Wanted] = {}
    for text, row in FILE["rows"].items():
        of = frozenset(FILE["models"][name] for name in row["of"].split())
        procedures = row["by"].split()
        for sentence, procedure in product(expanded(text), procedures):
            twice = procedure == "controlled" and len(procedures) > 1
            id = f"{sentence}{CONTROLLED}" if twice else sentence
            assert id not in found, f"{id} stands in the catalogue twice"
            found[id] = procedure, row["kind"], frozenset() if twice else of
    return found


WANTED = wanted()


def test_braces_are_alternatives() -> None:
    assert list(expanded("a.{,b.}c.{d,e}")) == ["a.c.d", "a.c.e", "a.b.c.d", "a.b.c.e"]
    assert list(expanded("plain")) == ["plain"]


@pytest.mark.parametrize("id", sorted(WANTED.keys() - ABSENT.keys()))
def test_a_row_is_judged_as_the_catalogue_has_it(id: str) -> None:
    assert id in JUDGED, "build it, or name it under [absent] in catalogue.toml with what it waits for"
    claim = JUDGED[id]
    assert (claim.procedure, claim.kind, frozenset(claim.asserted)) == WANTED[id]


def test_nothing_is_judged_that_the_catalogue_does_not_have() -> None:
    assert JUDGED.keys() <= WANTED.keys()


def test_what_is_absent_is_wanted_and_not_there() -> None:
    """A row that is built leaves the list of absent ones; and one that was taken out of the catalogue does too."""
    assert not ABSENT.keys() & JUDGED.keys()
    assert ABSENT.keys() <= WANTED.keys()
    assert all(ABSENT.values())
