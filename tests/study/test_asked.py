"""Which prompts, which ways and how many of them each row asks for, as docs/asked.md has them."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.by_hand.asked import LIST, PAGE, lists, of_the_paper


def test_rows_ask_for_what_the_page_says(tmp_path: Path) -> None:
    """`python -m tests.by_hand.asked` writes the page anew; what changed there is to be read against the paper."""
    shown = LIST.findall(PAGE.read_text("utf-8"))
    found = of_the_paper(tmp_path)
    assert [row.claim.id for row in found.rows if not row.grounds] == []
    for here, there in zip(lists(found), shown, strict=True):
        assert not list(difflib.unified_diff(there.splitlines(), here.splitlines(), "the page", "what is asked", n=0))
