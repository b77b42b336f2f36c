"""Every part of every headline rule is needed: without it a counterexample comes to another verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulate.parts import Names, carries, headline_rows, needed_parts
from tests.simulate.test_own_world import CASES

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "headline-parts.md"
LINE = re.compile(r"\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|")
LISTED = [
    (row, tuple(path.split(" / ")), why, model) for row, path, why, model in LINE.findall(PAGE.read_text("utf-8"))
]


def test_the_page_lists_every_part() -> None:
    assert [line[:2] for line in LISTED] == needed_parts()
    assert {row for row, _ in headline_rows()} - {row for row, *_ in LISTED} == {
        "circuit.recovers_accuracy", "circuit.recovers_most", "circuit.near_full"
    }  # fmt: skip


@pytest.mark.parametrize(("row", "path", "why", "model"), LISTED)
def test_without_a_part_its_counterexample_comes_to_another_verdict(
    row: str, path: Names, why: str, model: str
) -> None:
    case = next(case for case in CASES["case"] if (case["row"], case["why"], case["model"]) == (row, why, model))
    assert carries(case, path)
