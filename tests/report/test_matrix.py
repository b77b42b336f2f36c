"""The matrix at the top of the page: every row once, in the paper's order, above or below as it was judged."""

from __future__ import annotations

import re
from pathlib import Path

from rebinding.paper.rows.order import place, places
from rebinding.power.rows import claims
from rebinding.report.folder import read
from rebinding.report.matrix import matrix
from rebinding.report.outline import SECTIONS
from rebinding.report.page import html
from rebinding.report.schema import LETTERS
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import judged, make


def rows() -> list[Judgement]:
    """Every row of the suite as it might come out, in the alphabet's order, as verdicts go round."""
    names = list(LETTERS)
    ordered = sorted(claims(), key=lambda claim: claim.id)
    return [
        judged(
            claim.id,
            verdict=names[number % len(names)],
            sentence=claim.sentence,
            procedure=claim.procedure,
            expected=None,
        )
        for number, claim in enumerate(ordered)
    ]


def test_every_row_has_one_place() -> None:
    found = matrix(rows())
    columns = [column for line in found for column in line.columns]
    ids = [one.id for column in columns for one in column.both if one is not None]
    assert sorted(ids) == sorted(claim.id for claim in claims())
    assert [line.section.key for line in found] == [one.key for one in SECTIONS[:-1]], "no row is of no section"
    assert all(column.controlled.id == f"{column.sentence}.controlled" for column in columns if all(column.both))
    procedures = [(one.procedure, below) for column in columns for below, one in enumerate(column.both) if one]
    assert set(procedures) == {("published", 0), ("controlled", 1)}, "also where a sentence has one row alone"


def test_sections_stand_as_in_the_paper() -> None:
    """Not as in the alphabet: what each section says first, and last."""
    found = {line.section.key: [column.sentence for column in line.columns] for line in matrix(rows())}
    assert list(found) == ["tracing", "five", "circuit", "roles", "binding", "robust"]
    assert found["tracing"][0] == "tracing.reference_box_not_from_context"
    assert found["five"] == [name.replace("tracing.", "tracing.five_boxes.") for name in found["tracing"]]
    assert found["circuit"][:2] == ["circuit.full_model_accuracy", "circuit.recovers_accuracy"]
    assert found["roles"][0] == "roles.b_moves_pointer"
    assert found["binding"][0] == "binding.table.random.dR"
    assert found["robust"][-1] == "beyond.narrative"
    assert any(names != sorted(names) for names in found.values())


def test_every_declared_row_is_known_to_the_paper_s_order() -> None:
    assert [claim.id for claim in claims() if place(claim.id) == len(places())] == []
    assert place("mine.own") == len(places())
    assert place("tracing.five_boxes.object_direct.controlled") == place("tracing.object_direct")


def test_squares_are_letters_and_links(tmp_path: Path) -> None:
    """Also read aloud: the row, the procedure, and the verdict with its gate."""
    claims = [
        judged("roles.b_is_the_pointer", sentence="roles.b_is_the_pointer"),
        judged(
            "roles.b_is_the_pointer.controlled",
            sentence="roles.b_is_the_pointer",
            verdict="INVALID",
            gate="moved",
            expected="REPLICATED",
        ),
        judged("circuit.compact", sentence="circuit.compact", verdict="NOT REPLICATED", expected="NOT REPLICATED"),
    ]
    text = html(read(make(tmp_path / "r", claims, bare=True)))
    (table,) = re.findall(r'<table class="matrix">.*?</table>', text, flags=re.DOTALL)
    squares = re.findall(r'<a class="square ([^"]*)" href="#([^"]*)".*?aria-label="([^"]*)">(.)</a>', table)
    assert squares == [
        ("not-replicated", "circuit.compact", "circuit.compact, published: NOT REPLICATED", "N"),
        ("replicated", "roles.b_is_the_pointer", "roles.b_is_the_pointer, published: REPLICATED", "R"),
        (
            "invalid odd",
            "roles.b_is_the_pointer.controlled",
            "roles.b_is_the_pointer.controlled, controlled: INVALID (moved), not as expected",
            "!",
        ),
    ]
    assert table.count('aria-label="controlled: not judged"') == 1
