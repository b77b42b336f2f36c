"""The prompts, variants and counts that each row requests equal those in docs/requests.md."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.oracles.by_hand.binding_estimates import CORRECT
from tests.oracles.by_hand.requests_page import LIST, PAGE, judge_paper_claims, lists


def test_rows_ask_for_what_the_page_says(tmp_path: Path) -> None:
    """`python -m tests.oracles.by_hand.requests_page` writes the lists again. Compare changes with the paper."""
    printed = LIST.findall(PAGE.read_text("utf-8"))
    run = judge_paper_claims(tmp_path)
    listed = "circuit.few_heads"  # of which the paper prints the list
    ungrounded = [row for row in run.rows if not row.grounds and row.claim.id != listed]
    assert all(row.judgement.verdict == "NOT APPLICABLE" and row.claim.printed for row in ungrounded), (
        "another model's numbers"
    )
    assert {row.claim.id.rpartition(".")[0] for row in ungrounded} <= {
        f"binding.correct_only.{group}" for group in CORRECT
    }
    for actual, expected in zip(lists(run), printed, strict=True):
        assert not list(
            difflib.unified_diff(expected.splitlines(), actual.splitlines(), "the page", "the requests", n=0)
        )
