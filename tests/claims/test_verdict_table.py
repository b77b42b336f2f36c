"""The table of verdicts at the end of a run, and its brief form for many rows."""

from __future__ import annotations

from dataclasses import replace

from fixtures import verdict_table
from fixtures.verdict_table import FEW_MODELS, SCREEN, WIDTH, WRONG, fits_a_screen
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import make_row, summary_of

PLANT = "planted:pointer@llama"


def table(claims: list[Judgement]) -> list[str]:
    """The lines of the table."""
    return list(verdict_table.table(summary_of(claims).models))


def brief(claims: list[Judgement]) -> list[str]:
    """The lines of the brief form."""
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
    for claims in ([make_row("binding.keys")], [negative, *rows(2)], [replace(negative, expected="REPLICATED")]):
        assert not any(why in line for line in table(claims))


def test_a_model_has_a_sentence_and_a_line_for_every_section() -> None:
    negative = {"verdict": "NOT REPLICATED", "expected": "NOT REPLICATED"}
    first, tracing, binding, last = brief([*rows(30), make_row("tracing.one"), make_row("tracing.two", **negative)])
    assert first.startswith(f"{PLANT}: 31 of 32 claims replicated, 1 not.")
    assert "32 of 32 verdicts are as planted" in first
    assert " ".join(tracing.split()) == "Section 3: where the answer comes from 2: ✓ 1 replicated, ✗ 1 not"
    assert " ".join(binding.split()) == "Section 5: binding IDs in queries and keys 30: ✓ 30 replicated"
    assert "-v" in last


def test_an_unexpected_row_is_listed_with_its_reason() -> None:
    wrong = make_row("binding.keys", verdict="NOT REPLICATED", reason="0.1 in [0, 0.2]: " + "surely smaller " * 30)
    lines = brief([*rows(30), wrong])
    (line,) = (line for line in lines if "binding.keys" in line)
    assert line.startswith(f"{PLANT} binding.keys: NOT REPLICATED, expected REPLICATED: 0.1 in [0, 0.2]: surely")
    assert line.endswith(" ...")
    assert len(line) <= WIDTH


def test_a_row_without_an_expected_verdict_is_not_listed_as_wrong() -> None:
    open_row = make_row("binding.keys", model="mine", verdict="INCONCLUSIVE", expected=None)
    assert not [line for line in brief([*rows(30, model="mine"), open_row]) if "binding.keys" in line]


def test_many_wrong_rows_and_many_models_are_still_a_screen() -> None:
    wrong = {"verdict": "NOT REPLICATED", "expected": "REPLICATED"}
    small = [row for number in range(FEW_MODELS) for row in rows(40, model=f"m{number}", **wrong)]
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
        make_row(
            "binding.keys.controlled", sentence="binding.keys", verdict="NOT REPLICATED", expected="NOT REPLICATED"
        ),
    ]
    lines = brief([*(make_row(f"binding.r{n}", sentence=f"binding.r{n}") for n in range(30)), *artifact])
    assert "  as published and controlled: 1 artifact, 0 open or not judged" in lines
