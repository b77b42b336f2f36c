"""A sentence judged twice has a name, and only where both verdicts are decided."""

from __future__ import annotations

import pytest

from rebinding.verdicts.standing import Twice, in_words

CASES = {
    ("REPLICATED", "REPLICATED"): "robust",
    ("REPLICATED", "NOT REPLICATED"): "artifact",
    ("NOT REPLICATED", "REPLICATED"): "hidden",
    ("NOT REPLICATED", "NOT REPLICATED"): "refuted",
    ("REPLICATED", "INCONCLUSIVE"): None,
    ("INVALID", "REPLICATED"): None,
}


@pytest.mark.parametrize(("both", "name"), CASES.items())
def test_the_names(both: tuple[str, str], name: str | None) -> None:
    assert Twice("a", *both).name == name


def test_the_sentence_counts_and_lists_what_is_not_robust() -> None:
    found = [Twice(f"row{number}", *both) for number, both in enumerate(CASES)]
    assert in_words(found) == (
        "Of 6 sentences judged as published and controlled: 1 robust, 1 artifact (row1), 1 hidden (row2),"
        " 1 refuted (row3), 2 open or not judged."
    )
