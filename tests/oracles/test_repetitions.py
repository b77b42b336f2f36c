"""Repetitions are judged on other prompts each, and false verdicts are counted as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.evidence.store import Store
from rebinding.study.study import Study
from tests.oracles.repetitions import counts, headline_rows, judge_rows, make_case, outcome

DOMINANCE = tuple(row for row in headline_rows() if row.claim.id == "binding.key_dominance")


@pytest.mark.parametrize(
    ("verdict", "planted", "expected"),
    [
        ("REPLICATED", "REPLICATED", "as planted"),
        ("REPLICATED", "NOT REPLICATED", "false"),
        ("INCONCLUSIVE", "REPLICATED", "open"),
        ("INVALID", "REPLICATED", "open"),
        ("INVALID", "INVALID (group_present)", "as planted"),
        ("REPLICATED", "INVALID (group_present)", "false"),
        ("REPLICATED", None, "reported"),
    ],
)
def test_verdicts_are_counted_by_outcome(verdict: str, planted: str | None, expected: str) -> None:
    assert outcome({"verdict": verdict, "planted": planted}) == expected


@pytest.mark.slow
def test_repetitions_share_no_prompt(tmp_path: Path) -> None:
    cases = [make_case("planted:recency", number, Store(tmp_path)) for number in (0, 1)]
    studies = [Study.of(case) for case in cases]
    verdicts = [
        verdict for case, study in zip(cases, studies, strict=True) for verdict in judge_rows(case, study, DOMINANCE)
    ]
    requests = [[request for request in study.log.evidence if request.KIND.name == "binding"] for study in studies]
    judged = [{number for request in of_run for number in request.prompts.ids} for of_run in requests]
    assert [bool(ids) for ids in judged] == [True, True]
    assert not judged[0] & judged[1]
    assert {key: dict(count) for key, count in counts(verdicts).items()} == {
        ("planted:recency@llama", "binding.key_dominance"): {"as planted": 2}
    }
