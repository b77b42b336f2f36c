"""Which prompts, which ways and how many of them each row asks for, as docs/asked.md has them."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.oracles.by_hand.binding_estimates import CORRECT
from tests.oracles.by_hand.requests_page import LIST, PAGE, lists, of_the_paper


def test_rows_ask_for_what_the_page_says(tmp_path: Path) -> None:
    """`python -m tests.oracles.by_hand.requests_page` writes the page again.

    Read what changed there against the paper."""
    shown = LIST.findall(PAGE.read_text("utf-8"))
    found = of_the_paper(tmp_path)
    without = [row for row in found.rows if not row.grounds]
    assert all(row.told.verdict == "NOT APPLICABLE" and row.claim.printed for row in without), "another model's numbers"
    assert {row.claim.id.rpartition(".")[0] for row in without} <= {f"binding.correct_only.{one}" for one in CORRECT}
    for here, there in zip(lists(found), shown, strict=True):
        assert not list(difflib.unified_diff(there.splitlines(), here.splitlines(), "the page", "what is asked", n=0))
