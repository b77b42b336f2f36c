"""The headline claims: their rows, and their lines in the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claims.catalogue import catalogue_of_runs, claims
from fixtures.verdict_table import MOST_MODELS, headline_lines
from rebinding.paper.claim import Claim
from rebinding.paper.headlines import HEADLINES
from rebinding.paper.numbers import ALIASES
from rebinding.report.page import PAGE
from rebinding.verdicts.judgement import Judgement
from tests.claims.run_claims import assert_ok, run
from tests.report.folders import make_row, summary_of

PLANT = "planted:pointer@llama"
ROWS = {
    1: ["circuit.recovers_accuracy", "circuit.recovers_most", "circuit.near_full", "circuit.few_heads"],
    2: ["roles.b_is_the_pointer", "roles.b_raises_pointer"],
    3: ["binding.qk_cancels"],
    4: ["binding.key_dominance"],
    5: ["tracing.readout_over_swap_period", "binding.families_differ", "beyond.state_not_stored"],
}
"""The published rows of each headline claim."""


def headline_rows() -> list[Claim]:
    all_claims = [*claims(), *(row.claim for row in catalogue_of_runs())]
    return [claim for claim in all_claims if claim.headline is not None]


def test_the_rows_of_each_headline_claim() -> None:
    by_number: dict[int, set[str]] = {}
    for claim in headline_rows():
        by_number.setdefault(claim.headline or 0, set()).add(claim.sentence)
    assert by_number == {number: set(ids) for number, ids in ROWS.items()}
    assert list(ROWS) == [headline.number for headline in HEADLINES]


def test_a_controlled_row_belongs_to_the_headline_of_its_sentence() -> None:
    marked = {claim.id for claim in headline_rows()}
    pairs = {(claim.id, claim.sentence) for claim in claims() if claim.id != claim.sentence and not claim.long}
    double_ids = {id for id, sentence in pairs if sentence in marked}
    assert double_ids <= marked
    assert len(double_ids) > 4
    assert not [id for id in marked if "five_boxes" in id]


def test_no_headline_row_is_long() -> None:
    assert not [claim.id for claim in headline_rows() if claim.long]


def rows(model: str = PLANT, **fields: object) -> list[Judgement]:
    """A row of each headline claim, and a controlled one of the second."""
    published = [make_row(ids[0], model, headline=number, sentence=ids[0], **fields) for number, ids in ROWS.items()]
    controlled = make_row(
        "roles.b_is_the_pointer.controlled", model, headline=2, sentence="roles.b_is_the_pointer", **fields
    )
    return [*published, controlled]


def lines(judgements: list[Judgement], *, planted: bool = True) -> list[str]:
    return list(headline_lines(summary_of(judgements, planted=planted).models, None))


def test_five_lines_a_model() -> None:
    all_rows = [*rows(), *rows("planted:global@llama", verdict="NOT REPLICATED", expected="NOT REPLICATED")]
    header, first, *rest = lines(all_rows)
    assert header.split("  ")[0] == "The paper's headline claims"
    assert first == PLANT
    assert rest[5] == "planted:global@llama"
    for model_lines in (rest[:5], rest[6:11]):
        assert [line.split()[0] for line in model_lines] == [str(headline.number) for headline in HEADLINES]
        assert all(headline.title in line for headline, line in zip(HEADLINES, model_lines, strict=True))
    assert re.search(r"REPLICATED +REPLICATED +robust +roles.b_is_the_pointer 1 \[0.9, 1.1\]$", rest[1])
    assert re.search(r"NOT REPLICATED +NOT REPLICATED +refuted +roles", rest[7])
    assert len({line.index("binding.") for line in rest if "binding." in line}) == 1, "columns"


def test_the_last_line_says_where_the_page_is() -> None:
    models = summary_of(rows()).models
    assert [line for line in lines(rows()) if line.endswith(": the page of --report DIR")]
    assert [line for line in headline_lines(models, Path("out")) if line.endswith(f": {Path('out', PAGE)}")]


def test_a_verdict_that_is_not_as_planted_says_so() -> None:
    output = lines([*rows(), make_row("circuit.recovers_most", headline=1, kind="effect", verdict="NOT REPLICATED")])
    end = "circuit.recovers_most 1 [0.9, 1.1]; differs from what was planted: circuit.recovers_most"
    assert [line for line in output if line.endswith(end)]
    assert sum("differs" in line for line in output) == 1


def test_a_claim_that_the_paper_does_not_assert_is_marked() -> None:
    """Unless the paper asserts nothing about the model."""
    asserted, *rest = rows("gemma2-9b", expected=None)
    output = lines([make_row(asserted.id, "gemma2-9b", headline=1), *rest], planted=False)
    assert [line.endswith("the paper does not say this of it") for line in output[2:7]] == [False, *[True] * 4]
    assert not [line for line in lines(rows("mine", expected=None), planted=False) if "does not say" in line]


def test_a_gate_that_failed_is_named() -> None:
    stopped = make_row("roles.b_raises_pointer", headline=2, verdict="INVALID", gate="group_present", measured=None)
    assert [line for line in lines([*rows(), stopped]) if "roles.b_raises_pointer (group_present)" in line]


@pytest.mark.parametrize(
    "judgements",
    [
        [make_row(headline=None) for _ in range(9)],
        rows()[:2],
        [row for number in range(MOST_MODELS + 1) for row in rows(f"m{number}")],
        rows(verdict="INVALID", gate="above_chance", expected="REPLICATED", reason="5 of 12 right"),
    ],
    ids=["no headline row", "two rows", "many models", "nothing judged"],
)
def test_cases_without_headline_lines(judgements: list[Judgement]) -> None:
    assert lines(judgements) == []


@pytest.mark.parametrize(
    ("marks", "models"),
    [
        ("headline", [f"planted:{name}@llama" for name in ("pointer", "recency", "global")]),
        ("headline and gpu", list(ALIASES)),
    ],
)
def test_a_mark_selects_rows_and_gpu_alone_selects_models(marks: str, models: list[str]) -> None:
    """`-m` takes the place of the marks in pytest.ini, which leave the paper's models out."""
    output = run("-m", marks, "--collect-only")
    assert_ok(output)
    collected = re.findall(r"\[([\w:@.-]+)-([a-z_]+\.[\w.]+)\]", output.stdout)
    ids = [claim.id for claim in claims() if claim.headline is not None]
    assert sorted(collected) == sorted((model, id) for model in models for id in ids)
