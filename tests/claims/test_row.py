"""How a claim is written down above its rule, and how it is found by its id."""

from __future__ import annotations

from typing import Any

import pytest

from claims.catalogue import claim, claims, claims_of, row, rows
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict

SECTION = "roles"
PLAIN: dict[str, Any] = {
    "source": "here", "kind": "effect", "metrics": ("dR",), "statistic": "mean", "where": "group B",
}  # fmt: skip


def ids(judge: Any) -> list[str]:
    (mark,) = judge.pytestmark
    assert [param.id for param in mark.args[1]] == list(mark.kwargs["ids"])
    return list(mark.kwargs["ids"])


def test_claims_stand_from_top_to_bottom_each_before_its_controlled_row() -> None:
    @row("a.first", "It is.", **PLAIN, controlled={"n": 7})
    @row("a.second", "It is not.", **PLAIN)
    @rows((Claim(id=f"a.{name}", statement="All.", **PLAIN) for name in "xy"), controlled={})
    def judge(claim: Claim, study: object) -> None: ...

    tables = ["a.x", "a.y", "a.x.controlled", "a.y.controlled"]
    assert ids(judge) == ["a.first", "a.first.controlled", "a.second", *tables]
    first, controlled = claims_of(judge)[:2]
    assert (controlled.sentence, controlled.procedure, controlled.n, controlled.models) == (
        first.id,
        "controlled",
        7,
        (),
    )
    assert (first.procedure, first.n, len(first.models)) == ("published", 300, 4)


def test_rows_with_five_boxes_are_sentences_of_their_own() -> None:
    @row("a.b", "It is.", **PLAIN, n=50, controlled={}, five_boxes=True)
    def judge(claim: Claim, study: object) -> None: ...

    rows = claims_of(judge)
    assert [(claim.id, claim.boxes, claim.n) for claim in rows] == [
        ("a.b", 3, 50),
        ("a.b.controlled", 3, 50),
        ("a.five_boxes.b", 5, 50),
        ("a.five_boxes.b.controlled", 5, 50),
    ]
    assert [claim.sentence for claim in rows] == ["a.b", "a.b", "a.five_boxes.b", "a.five_boxes.b"]
    assert rows[2].statement == "With five boxes and a further swap: it is."


def test_a_claim_needs_the_group_that_it_is_about_unless_it_says_otherwise() -> None:
    @row("a.b", "It is.", **PLAIN, group="B")
    @row("a.c", "It is.", **PLAIN, group="C", needs=())
    @row("a.d", "It is.", **PLAIN, needs=("D", "E"))
    def judge(claim: Claim, study: object) -> None: ...

    assert [(claim.group, claim.needs) for claim in claims_of(judge)] == [("B", ("B",)), ("C", ()), (None, ("D", "E"))]


def test_other_marks_of_a_test_stay() -> None:
    @row("a.b", "It is.", **PLAIN)
    @pytest.mark.slow
    @row("a.c", "It is.", **PLAIN)
    def judge(claim: Claim, study: object) -> None: ...

    assert [mark.name for mark in judge.pytestmark] == ["slow", "parametrize"]  # type: ignore[attr-defined]  # pytest's


def test_a_claim_is_had_by_its_id_and_a_similar_one_is_suggested() -> None:
    assert claim("binding.q_redirects").metrics == ("dR", "dlogit")
    assert claim("binding.families_differ") not in claims(), "it is about a run"
    with pytest.raises(ValueError, match=r"'binding\.q_redirect'.*binding\.q_redirects"):
        claim("binding.q_redirect")


def test_the_paper_s_order() -> None:
    """Section 4.1 with what its heads attend to, before 4.2."""
    sections = list(dict.fromkeys(claim.section for claim in claims()))
    assert sections == ["tracing", "five", "circuit", "roles", "binding", "robust"]


def test_a_claim_stands_in_the_section_of_its_file() -> None:
    """Unless it says another, and five boxes are a section of their own."""

    @row("a.x", "It is.", **PLAIN, section="robust")
    @row("a.y", "It is.", **PLAIN, five_boxes=True)
    def judge(claim: Claim, study: object) -> Verdict: ...

    assert [(claim.id, claim.section) for claim in claims_of(judge)] == [
        ("a.x", "robust"),
        ("a.y", "roles"),
        ("a.five_boxes.y", "five"),
    ]
