"""A sentence judged twice has a name, and only where both verdicts are decided."""

from __future__ import annotations

import pytest

from rebinding.verdicts.judgement import Sentence, in_words, sentences
from tests.report.folders import make_row

CASES = {
    ("REPLICATED", "REPLICATED"): "robust",
    ("REPLICATED", "NOT REPLICATED"): "artifact",
    ("NOT REPLICATED", "REPLICATED"): "hidden",
    ("NOT REPLICATED", "NOT REPLICATED"): "refuted",
    ("REPLICATED", "INCONCLUSIVE"): None,
    ("INVALID", "REPLICATED"): None,
}


def sentence(id: str, published: str, controlled: str) -> Sentence:
    """A sentence that came out so."""
    return Sentence(id, make_row(id, verdict=published), make_row(f"{id}.controlled", verdict=controlled))


@pytest.mark.parametrize(("verdicts", "name"), CASES.items())
def test_standing_by_both_verdicts(verdicts: tuple[str, str], name: str | None) -> None:
    assert sentence("a", *verdicts).standing == name


def test_the_sentence_counts_and_lists_what_is_not_robust() -> None:
    all_sentences = [sentence(f"row{number}", *verdicts) for number, verdicts in enumerate(CASES)]
    assert in_words(all_sentences) == (
        "Of 6 sentences judged as published and controlled: 1 robust, 1 artifact (row1), 1 hidden (row2),"
        " 1 refuted (row3), 2 open or not judged."
    )


def test_a_sentence_with_both_rows_is_judged_twice() -> None:
    rows = [
        make_row(id, sentence=id.removesuffix(".controlled"), verdict=verdict)
        for id, verdict in (
            ("once", "REPLICATED"),
            ("twice", "REPLICATED"),
            ("alone.controlled", "REPLICATED"),
            ("twice.controlled", "NOT REPLICATED"),
        )
    ]
    assert sentences(rows) == (
        Sentence("once", rows[0], None),
        Sentence("twice", rows[1], rows[3]),
        Sentence("alone", None, rows[2]),
    )
    assert [sentence.id for sentence in sentences(rows) if sentence.is_judged_twice] == ["twice"]
