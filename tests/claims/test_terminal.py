"""What a run says at its end: lines of the headline claims, the table of verdicts or its brief form, certificates."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claims
from fixtures import verdict_table
from fixtures.report import describe_certificate
from fixtures.verdict_table import FEW_MODELS, MOST_MODELS, SCREEN, WIDTH, WRONG, fits_a_screen, headline_lines
from rebinding.evidence.certificates import certificate_file, save_certificate
from rebinding.evidence.store import Store
from rebinding.paper.certificate import summarise
from rebinding.paper.headlines import HEADLINES
from rebinding.paper.numbers import ALIASES
from rebinding.report.page import PAGE
from rebinding.verdicts.judgement import Judgement
from tests.claims.run_claims import assert_ok, run
from tests.paper.certificates import make_certificate
from tests.report.folders import make_row, summary_of

PLANT = "planted:pointer@llama"
FIRST_ROWS = {
    1: "circuit.recovers_accuracy",
    2: "roles.b_is_the_pointer",
    3: "binding.qk_cancels",
    4: "binding.key_dominance",
    5: "tracing.readout_over_swap_period",
}
"""A row of each headline claim."""
NEGATIVE = {"verdict": "NOT REPLICATED", "expected": "NOT REPLICATED"}
UNEXPECTED = {"verdict": "NOT REPLICATED", "expected": "REPLICATED"}


# Headline claims


def headlines(model: str = PLANT, **fields: object) -> list[Judgement]:
    """A row of each headline claim, and a controlled one of the second."""
    published = [make_row(id, model, headline=number, sentence=id, **fields) for number, id in FIRST_ROWS.items()]
    return [*published, make_row(f"{FIRST_ROWS[2]}.controlled", model, headline=2, sentence=FIRST_ROWS[2], **fields)]


def lines(judgements: list[Judgement], *, planted: bool = True, report: Path | None = None) -> list[str]:
    return list(headline_lines(summary_of(judgements, planted=planted).models, report))


def test_a_model_has_five_lines_and_one_says_where_the_page_is() -> None:
    all_rows = [*headlines(), *headlines("planted:global@llama", **NEGATIVE)]
    header, first, *rest = lines(all_rows)
    assert header.split("  ")[0] == "The paper's headline claims"
    assert first == PLANT
    assert rest[5] == "planted:global@llama"
    for model_lines in (rest[:5], rest[6:11]):
        assert [line.split()[0] for line in model_lines] == [str(headline.number) for headline in HEADLINES]
        assert all(headline.title in line for headline, line in zip(HEADLINES, model_lines, strict=True))
    assert re.search(r"REPLICATED +REPLICATED +robust +roles.b_is_the_pointer: 1 \[0.9, 1.1\]$", rest[1])
    assert re.search(r"NOT REPLICATED +NOT REPLICATED +refuted +roles", rest[7])
    assert len({line.index("binding.") for line in rest if "binding." in line}) == 1, "columns"
    assert [line for line in rest if line.endswith(": the page of --report DIR")]
    assert [line for line in lines(all_rows, report=Path("out")) if line.endswith(f": {Path('out', PAGE)}")]


def test_a_line_names_what_differs_and_the_gate_that_failed() -> None:
    wrong = make_row("circuit.recovers_most", headline=1, kind="effect", verdict="NOT REPLICATED")
    stopped = make_row("roles.b_raises_pointer", headline=2, verdict="INVALID", gate="group_present", measured=None)
    output = lines([*headlines(), wrong, stopped])
    end = "circuit.recovers_most: 1 [0.9, 1.1]; differs from what was planted: circuit.recovers_most"
    assert [line for line in output if line.endswith(end)]
    assert sum("circuit" in line and "differs" in line for line in output) == 1
    assert [line for line in output if "roles.b_raises_pointer (group_present)" in line]


def test_a_claim_that_the_paper_does_not_assert_is_marked() -> None:
    """Unless the paper asserts nothing about the model."""
    asserted, *rest = headlines("gemma2-9b", expected=None)
    output = lines([make_row(asserted.id, "gemma2-9b", headline=1), *rest], planted=False)
    assert [line.endswith("the paper does not say this of it") for line in output[2:7]] == [False, *[True] * 4]
    assert not [line for line in lines(headlines("mine", expected=None), planted=False) if "does not say" in line]


@pytest.mark.parametrize(
    "judgements",
    [
        [make_row(headline=None) for _ in range(9)],
        headlines()[:2],
        [row for number in range(MOST_MODELS + 1) for row in headlines(f"m{number}")],
        headlines(verdict="INVALID", gate="above_chance", expected="REPLICATED", reason="5 of 12 right"),
    ],
    ids=["no headline row", "two rows", "many models", "nothing judged"],
)
def test_some_runs_have_no_headline_lines(judgements: list[Judgement]) -> None:
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


# The table of verdicts, and its brief form for many rows


def table(claims: list[Judgement]) -> list[str]:
    return list(verdict_table.table(summary_of(claims).models))


def brief(claims: list[Judgement]) -> list[str]:
    return list(verdict_table.brief(summary_of(claims, planted=claims[0].model == PLANT).models))


def rows(count: int, **fields: object) -> list[Judgement]:
    """This many rows of section 5 on one model."""
    return [make_row(f"binding.row{number}", **fields) for number in range(count)]


def test_a_screen_of_rows_is_a_table() -> None:
    assert fits_a_screen(summary_of(rows(SCREEN)).models)
    assert not fits_a_screen(summary_of(rows(SCREEN + 1)).models)


def test_a_row_that_is_judged_alone_says_why() -> None:
    why = "-0.1 in [-0.2, 0] against 0 +- 0.25: surely not greater by the margin"
    negative = make_row("binding.keys", verdict="NOT REPLICATED", expected=None, reason=why)
    assert f"  binding.keys: {why}" in table([negative])
    for judged in ([make_row("binding.keys")], [negative, *rows(2)], [replace(negative, expected="REPLICATED")]):
        assert not any(why in line for line in table(judged))


def test_a_model_has_a_sentence_and_a_line_for_every_section() -> None:
    first, tracing, binding, last = brief([*rows(30), make_row("tracing.one"), make_row("tracing.two", **NEGATIVE)])
    assert first.startswith(f"{PLANT}: 31 of 32 rows replicated, 1 not.")
    assert "32 of 32 verdicts are as planted" in first
    assert " ".join(tracing.split()) == "Section 3: where the answer comes from 2: ✓ 1 replicated, ✗ 1 not"
    assert " ".join(binding.split()) == "Section 5: binding IDs in queries and keys 30: ✓ 30 replicated"
    assert "-v" in last


def test_an_unexpected_row_is_listed_with_its_reason() -> None:
    """And not one of which nothing is expected."""
    wrong = make_row("binding.keys", verdict="NOT REPLICATED", reason="0.1 in [0, 0.2]: " + "surely smaller " * 30)
    (line,) = (line for line in brief([*rows(30), wrong]) if "binding.keys" in line)
    assert line.startswith(f"{PLANT} binding.keys: NOT REPLICATED, expected REPLICATED: 0.1 in [0, 0.2]: surely")
    assert line.endswith(" ...")
    assert len(line) <= WIDTH
    open_row = make_row("binding.keys", model="mine", verdict="INCONCLUSIVE", expected=None)
    assert not [line for line in brief([*rows(30, model="mine"), open_row]) if "binding.keys" in line]


def test_many_wrong_rows_and_many_models_are_still_a_screen() -> None:
    small = [row for number in range(FEW_MODELS) for row in rows(40, model=f"m{number}", **UNEXPECTED)]
    lines = brief(small)
    assert len(lines) <= 2 * FEW_MODELS + WRONG + 2
    assert f"and {3 * 40 - WRONG} other rows that came out otherwise" in lines
    large = [row for number in range(78) for row in rows(5, model=f"m{number}")]
    assert len(brief(large)) == 78 + 1


def test_the_reason_of_a_gate_is_given_once() -> None:
    stopped = rows(30, model="mine", verdict="INVALID", expected=None, gate="above_chance", reason="5 of 12 right")
    text = "\n".join(brief(stopped))
    assert text.count("5 of 12 right: nothing can be judged on this model") == 1
    assert text.count("INVALID (above_chance)") == 1
    assert "Section 5" not in text


def test_sentences_judged_twice_are_counted() -> None:
    artifact = [
        make_row("binding.keys", sentence="binding.keys"),
        make_row("binding.keys.controlled", sentence="binding.keys", **NEGATIVE),
    ]
    lines = brief([*(make_row(f"binding.r{n}", sentence=f"binding.r{n}") for n in range(30)), *artifact])
    assert "  as published and controlled: 1 artifact, 0 open or not judged" in lines


# Certificates, in the run's own store or the default one

LOADED: Any = SimpleNamespace(fingerprint="0123abcd" * 8, dtype="float32")


def model_in(store: Path | None, dtype: str | None = None) -> Any:
    settings = SimpleNamespace(store=None if store is None else Store(store), dtype=dtype)
    return SimpleNamespace(name="a model", settings=settings)


@pytest.mark.parametrize(("folder", "store"), [("own", "own"), (".rebinding", "own"), (".rebinding", None)])
def test_a_saved_certificate_is_found_and_else_the_command_is_named(
    folder: str, store: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBINDING_STORE", raising=False)
    own = None if store is None else tmp_path / store
    missing = describe_certificate(model_in(own), LOADED)
    assert missing == {"certificate": None, "certified": "Not certified: run `rebinding certify 'a model'`"}
    certified = describe_certificate(model_in(own, "bfloat16"), LOADED)["certified"]
    assert certified == "Not certified: run `rebinding certify 'a model' --dtype bfloat16`"
    certificate = make_certificate()
    save_certificate(certificate, certificate_file(tmp_path / folder, LOADED.fingerprint))
    description = describe_certificate(model_in(own), LOADED)
    assert description == {"certificate": summarise(certificate), "certified": certificate.sentence}
