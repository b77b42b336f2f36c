"""The summary of a run: its sentence, its failures, and the matrix with every row once, in the paper's order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from claims.catalogue import claim, claims, place, places
from rebinding.report.folder import read
from rebinding.report.page import html
from rebinding.report.summary import LETTERS, MEANINGS, SECTIONS, ModelSummary
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.outcome import OUTCOMES
from tests.report.folders import make, make_row, summary_of


def model_of(claims: list[Judgement]) -> ModelSummary:
    """The summary of the one model that was judged."""
    (model,) = summary_of(claims).models
    return model


def rows() -> list[Judgement]:
    """Every row of the suite in alphabetical order, with verdicts in rotation."""
    names = list(LETTERS)
    ordered = sorted(claims(), key=lambda claim: claim.id)
    return [
        make_row(
            claim.id,
            verdict=names[number % len(names)],
            sentence=claim.sentence,
            procedure=claim.procedure,
            place=place(claim),
            section=claim.section,
            expected=None,
        )
        for number, claim in enumerate(ordered)
    ]


def test_every_row_has_one_place() -> None:
    lines = model_of(rows()).sections
    columns = [sentence for line in lines for sentence in line.sentences]
    pairs = {column.id: (column.published, column.controlled) for column in columns}
    ids = [row.id for pair in pairs.values() for row in pair if row is not None]
    assert sorted(ids) == sorted(claim.id for claim in claims())
    assert [line.section.key for line in lines] == [section.key for section in SECTIONS[:-1]], "no row is of no section"
    assert all(
        column.controlled.id == f"{column.id}.controlled"
        for column in columns
        if column.published and column.controlled
    )
    procedures = [(row.procedure, below) for pair in pairs.values() for below, row in enumerate(pair) if row]
    assert set(procedures) == {("published", 0), ("controlled", 1)}, "also where a sentence has a single row"


def test_sections_stand_as_in_the_paper() -> None:
    """The first and last sentences of sections are not in alphabetical order."""
    ids = {line.section.key: [sentence.id for sentence in line.sentences] for line in model_of(rows()).sections}
    assert list(ids) == ["tracing", "five", "circuit", "roles", "binding", "robust"]
    assert ids["tracing"][0] == "tracing.reference_box_not_from_context"
    assert ids["five"] == [name.replace("tracing.", "tracing.five_boxes.") for name in ids["tracing"]]
    assert ids["circuit"][:2] == ["circuit.full_model_accuracy", "circuit.recovers_accuracy"]
    assert ids["roles"][0] == "roles.b_moves_pointer"
    assert ids["binding"][0] == "binding.table.random.dR"
    assert ids["robust"][-1] == "beyond.id_not_position"
    assert any(names != sorted(names) for names in ids.values())


def test_both_procedures_share_a_place_and_undeclared_sentences_come_last() -> None:
    direct = claim("tracing.object_direct")
    assert place(claim("tracing.object_direct.controlled")) == place(direct) < len(places())
    assert place(replace(direct, id="mine.own", sentence="mine.own")) == len(places())


def test_squares_are_letters_and_links(tmp_path: Path) -> None:
    """Their labels for screen readers name the row, the procedure, and the verdict with its gate."""
    claims = [
        make_row("roles.b_is_the_pointer", sentence="roles.b_is_the_pointer"),
        make_row(
            "roles.b_is_the_pointer.controlled",
            sentence="roles.b_is_the_pointer",
            verdict="INVALID",
            gate="moved",
            expected="REPLICATED",
        ),
        make_row("circuit.compact", sentence="circuit.compact", verdict="NOT REPLICATED", expected="NOT REPLICATED"),
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
            "roles.b_is_the_pointer.controlled, controlled: INVALID (moved), unexpected",
            "!",
        ),
    ]
    assert table.count('aria-label="controlled: no row in this run"') == 1


def test_the_sentence_at_the_top() -> None:
    verdicts = ["REPLICATED"] * 27 + ["NOT REPLICATED"] * 2 + ["INCONCLUSIVE"] * 2
    claims = [make_row(f"roles.{number}", verdict=verdict) for number, verdict in enumerate(verdicts)]
    assert model_of(claims).sentence == "27 of 31 rows replicated, 2 not, 2 inconclusive."
    more = [*claims, make_row("a", verdict="NOT APPLICABLE"), make_row("b", kind="report")]
    assert (
        model_of(more).sentence
        == "27 of 31 rows replicated, 2 not, 2 inconclusive (1 not applicable and 1 only reported besides)."
    )
    assert model_of(claims[:1]).sentence == "1 of 1 row replicated."


def test_failures_are_grouped_by_reason() -> None:
    """Unexpected failures come first; claims that failed for the same reason are one entry."""
    fields = {"verdict": "NOT REPLICATED", "expected": "NOT REPLICATED"}
    claims = [
        make_row("a", **fields, because="shared"),
        make_row("b"),
        make_row("c", verdict="INVALID", gate="group_present", expected="INVALID (group_present)", because="absent"),
        make_row("d", **fields, because="shared"),
        make_row("e", verdict="NOT REPLICATED", because="unexpected"),
    ]
    failures = model_of(claims).failures
    assert [(failure.reason, failure.ids, failure.as_expected) for failure in failures] == [
        ("unexpected", ("e",), False),
        ("shared", ("a", "d"), True),
        ("absent", ("c",), True),
    ]


def test_every_verdict_has_a_letter_and_a_meaning() -> None:
    assert set(LETTERS) == set(MEANINGS) == set(OUTCOMES)
    assert len(set(LETTERS.values())) == len(LETTERS)
