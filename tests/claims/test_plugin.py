"""The pytest plugin in small runs: effects of a verdict on a test, on the run and on the files written."""

from __future__ import annotations

import json

import pytest

from rebinding.planted import build
from tests.claims.run_claims import save_model, save_random

pytest_plugins = ["pytester"]

ROWS = """
from claims.catalogue import rows
from dataclasses import replace
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict, not_applicable

def row(name):
    return Claim("binding." + name, "A sentence.", "section 5", "effect", ("dR",), "mean", "group B", models=())

OUTCOMES = {"k_redirects": "REPLICATED", "q_strongest": "NOT REPLICATED", "key_dominance": "REPLICATED",
            "q_redirects": "INCONCLUSIVE"}

@rows(row(name) for name in OUTCOMES)
def test_rows(claim, study):
    return Verdict("effect", OUTCOMES[claim.id.removeprefix("binding.")], "as told", measured=1.0, n=12)
"""


@pytest.fixture
def run(pytester: pytest.Pytester):  # type: ignore[no-untyped-def]  # a closure
    """Judge the rows above on a planted model; truth says yes, no, no, yes."""
    pytester.makepyfile(test_small=ROWS)

    def judged(*options: str) -> pytest.RunResult:
        arguments = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider", *options)
        return pytester.runpytest_inprocess("-p", "fixtures.plugin", *arguments)

    return judged


def test_a_planted_verdict_must_be_the_truth(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    result = run("--report", "out", "--junitxml", "out.xml", "-o", "junit_family=xunit1")
    result.assert_outcomes(passed=2, failed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*binding.key_dominance on planted:pointer@llama: REPLICATED, expected NOT REPLICATED"]
    )
    report = json.loads((pytester.path / "out" / "claims.json").read_text())
    assert {row["id"]: (row["verdict"], row["expected"]) for row in report["claims"]} == {
        "binding.k_redirects": ("REPLICATED", "REPLICATED"),
        "binding.q_strongest": ("NOT REPLICATED", "NOT REPLICATED"),
        "binding.key_dominance": ("REPLICATED", "NOT REPLICATED"),
        "binding.q_redirects": ("INCONCLUSIVE", "REPLICATED"),
    }
    assert 'name="verdict" value="INCONCLUSIVE"' in (pytester.path / "out.xml").read_text()


@pytest.mark.parametrize("option", [(), ("-v",)])
def test_long_tables_are_shortened(run, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.verdict_table.SCREEN", 3)
    result = run(*option)
    assert result.outlines.count("every row: -v, or the page of --report DIR") == (not option)
    expected_line = "planted:pointer@llama binding.key_dominance: REPLICATED, expected NOT REPLICATED: as told"
    assert result.outlines.count(expected_line) == (not option)
    assert bool([line for line in result.outlines if line.startswith("  binding.k_redirects ")]) == bool(option)


def test_a_row_that_returns_no_verdict_is_an_error(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(test_small=ROWS.replace("    return Verdict(", "    Verdict("))
    result = run("-k", "q_strongest")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TypeError: the test of binding.q_strongest returned None; a test of a claim *"])


def test_inability_of_a_model_is_reported_once(pytester: pytest.Pytester) -> None:
    """Every test fails, and counts; what is read is one sentence, and nothing of what libraries say while loading. A
    single failure is told by pytest."""
    pytester.makepyfile(test_small=ROWS)
    arguments = (
        "--model",
        str(save_random(pytester.path / "model")),
        "--device",
        "cpu",
        "--samples",
        "12",
        "--no-store",
    )
    options = ("-p", "fixtures.plugin", "-p", "no:cacheprovider", "-q", *arguments)
    result = pytester.runpytest_inprocess(*options, "--junitxml", "out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["* of 24 answers are right, chance is 1/3 * nothing can be judged on this model"])
    result.stdout.fnmatch_lines(["  4 claims: INVALID (above_chance)"])
    result.stdout.no_fnmatch_line("*FAILURES*")
    result.stdout.no_fnmatch_line("FAILED *")
    assert (pytester.path / "out.xml").read_text().count("<failure") == 4
    single = pytester.runpytest_inprocess(*options, "-k", "q_redirects")
    single.assert_outcomes(failed=1)
    single.stdout.fnmatch_lines(["*FAILURES*", "binding.q_redirects on *: INVALID (above_chance), expected a valid *"])
    single.stdout.no_fnmatch_line("*Captured*")


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--strict-verdicts",), 1)])
def test_an_open_verdict_fails_a_run_only_if_asked(
    option: tuple[str, ...], code: int, pytester: pytest.Pytester
) -> None:
    plant = build("pointer")
    folder = save_model(plant.model, plant.tokenizer, pytester.path / "model")
    pytester.makepyfile(test_small=ROWS)
    arguments = ("--model", str(folder), "--device", "cpu", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    result = pytester.runpytest_inprocess(
        "-p", "fixtures.plugin", *arguments, *option, "-k", "q_redirects or q_strongest"
    )
    result.stdout.fnmatch_lines(["*1 reported, 1 inconclusive*"])
    assert result.ret == code


def test_the_papers_models_are_listed_and_refused_without_a_gpu(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pytester.makepyfile(test_small=ROWS)
    options = ("-p", "fixtures.plugin", "-p", "no:cacheprovider", "-m", "gpu", "-o", "markers=gpu: a GPU")
    listing = pytester.runpytest_inprocess(*options, "--collect-only", "-q")
    assert sum("llama3.1-8b" in line for line in listing.outlines) == 4
    refused = pytester.runpytest_inprocess(*options)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "need a CUDA device" in "\n".join([*refused.outlines, *refused.errlines])
    skipped = pytester.runpytest_inprocess(*options, "--skip-unavailable")
    skipped.assert_outcomes(skipped=16, deselected=12)


@pytest.mark.parametrize("marks", [None, "not long", "not headline", "not gpu and not long", "not gpus"])
def test_marks_that_do_not_speak_of_gpu_leave_the_papers_models_out(
    pytester: pytest.Pytester, marks: str | None
) -> None:
    """A `-m` on the command line takes the place of that in pytest.ini, which leaves them out."""
    pytester.makepyfile(test_small=ROWS)
    options = ("-p", "fixtures.plugin", "-p", "no:cacheprovider", "--collect-only", "-q")
    markers = "markers=gpu: a GPU\nlong: takes long\nheadline: comes first\ngpus: no such mark"
    listing = pytester.runpytest_inprocess(*options, "-o", markers, *(("-m", marks) if marks else ()))
    tests = [line for line in listing.outlines if "::" in line]
    assert len(tests) == 12
    assert all("planted:" in line for line in tests)


def test_headline_claims_come_before_all_else(pytester: pytest.Pytester) -> None:
    """Chosen by their mark, whatever the procedure; the table of rows stands below them."""
    pytester.makepyfile(test_small=ROWS.replace("models=())", 'models=(), headline=3 if name[0] == "k" else None)'))
    arguments = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    options = ("-p", "fixtures.plugin", "-o", "markers=headline: comes first", *arguments)
    full = pytester.runpytest_inprocess(*options)
    full.assert_outcomes(passed=2, failed=2)
    differs = "  3 * REPLICATED *; differs from what was planted: binding.key_dominance"
    full.stdout.fnmatch_lines(["The paper's headline claims *", "planted:*", differs, "  claim *paper *verdict"])
    selection = pytester.runpytest_inprocess(*options, "-m", "headline", "--collect-only", "-q")
    assert sum("::" in line for line in selection.outlines) == 2
