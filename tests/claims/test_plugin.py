"""The plugin in small runs of its own: what a verdict does to a test, to the run, and to what is written."""

from __future__ import annotations

import json

import pytest

from rebinding.planted import build
from tests.claims.runs import folder_of, save_random

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
        given = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider", *options)
        return pytester.runpytest_inprocess("-p", "fixtures.plugin", *given)

    return judged


def test_a_planted_verdict_must_be_the_truth(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    found = run("--report", "out", "--junitxml", "out.xml", "-o", "junit_family=xunit1")
    found.assert_outcomes(passed=2, failed=2)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(["*binding.key_dominance on planted:pointer@llama: REPLICATED, expected NOT REPLICATED"])
    told = json.loads((pytester.path / "out" / "claims.json").read_text())
    assert {one["id"]: (one["verdict"], one["expected"]) for one in told["claims"]} == {
        "binding.k_redirects": ("REPLICATED", "REPLICATED"),
        "binding.q_strongest": ("NOT REPLICATED", "NOT REPLICATED"),
        "binding.key_dominance": ("REPLICATED", "NOT REPLICATED"),
        "binding.q_redirects": ("INCONCLUSIVE", "REPLICATED"),
    }
    assert 'name="verdict" value="INCONCLUSIVE"' in (pytester.path / "out.xml").read_text()


@pytest.mark.parametrize("option", [(), ("-v",)])
def test_more_than_a_screen_is_told_in_brief(run, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.verdict_table.SCREEN", 3)
    found = run(*option)
    assert found.outlines.count("every row: -v, or the page of --report DIR") == (not option)
    otherwise = "planted:pointer@llama binding.key_dominance: REPLICATED, expected NOT REPLICATED: as told"
    assert found.outlines.count(otherwise) == (not option)
    assert bool([line for line in found.outlines if line.startswith("  binding.k_redirects ")]) == bool(option)


def test_a_row_that_returns_no_verdict_is_an_error(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(test_small=ROWS.replace("    return Verdict(", "    Verdict("))
    found = run("-k", "q_strongest")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*TypeError: the test of binding.q_strongest returned None; a test of a claim *"])


def test_what_a_model_cannot_do_is_said_once(pytester: pytest.Pytester) -> None:
    """Every test fails, and counts; what is read is one sentence, and nothing of what libraries say while loading. A
    single failure is told by pytest."""
    pytester.makepyfile(test_small=ROWS)
    given = ("--model", str(save_random(pytester.path / "model")), "--device", "cpu", "--samples", "12", "--no-store")
    options = ("-p", "fixtures.plugin", "-p", "no:cacheprovider", "-q", *given)
    found = pytester.runpytest_inprocess(*options, "--junitxml", "out.xml")
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.assert_outcomes(failed=4)
    found.stdout.fnmatch_lines(["* of 12 answers are right, chance is 1/3 * nothing can be judged on this model"])
    found.stdout.fnmatch_lines(["  4 claims: INVALID (above_chance)"])
    found.stdout.no_fnmatch_line("*FAILURES*")
    found.stdout.no_fnmatch_line("FAILED *")
    assert (pytester.path / "out.xml").read_text().count("<failure") == 4
    alone = pytester.runpytest_inprocess(*options, "-k", "q_redirects")
    alone.assert_outcomes(failed=1)
    alone.stdout.fnmatch_lines(["*FAILURES*", "binding.q_redirects on *: INVALID (above_chance), expected a valid *"])
    alone.stdout.no_fnmatch_line("*Captured*")


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--strict-verdicts",), 1)])
def test_an_open_verdict_fails_a_run_only_if_asked(
    option: tuple[str, ...], code: int, pytester: pytest.Pytester
) -> None:
    plant = build("pointer")
    folder = folder_of(plant.model, plant.tokenizer, pytester.path / "model")
    pytester.makepyfile(test_small=ROWS)
    given = ("--model", str(folder), "--device", "cpu", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    found = pytester.runpytest_inprocess("-p", "fixtures.plugin", *given, *option, "-k", "q_redirects or q_strongest")
    found.stdout.fnmatch_lines(["*1 reported, 1 inconclusive*"])
    assert found.ret == code


def test_the_papers_models_are_listed_and_refused_without_a_gpu(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pytester.makepyfile(test_small=ROWS)
    options = ("-p", "fixtures.plugin", "-p", "no:cacheprovider", "-m", "gpu", "-o", "markers=gpu: a GPU")
    listed = pytester.runpytest_inprocess(*options, "--collect-only", "-q")
    assert sum("llama3.1-8b" in line for line in listed.outlines) == 4
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
    known = "markers=gpu: a GPU\nlong: takes long\nheadline: comes first\ngpus: no such mark"
    listed = pytester.runpytest_inprocess(*options, "-o", known, *(("-m", marks) if marks else ()))
    tests = [line for line in listed.outlines if "::" in line]
    assert len(tests) == 12
    assert all("planted:" in line for line in tests)


def test_headline_claims_come_before_all_else(pytester: pytest.Pytester) -> None:
    """Chosen by their mark, whatever the procedure; the table of rows stands below them."""
    pytester.makepyfile(test_small=ROWS.replace("models=())", 'models=(), headline=3 if name[0] == "k" else None)'))
    given = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    options = ("-p", "fixtures.plugin", "-o", "markers=headline: comes first", *given)
    whole = pytester.runpytest_inprocess(*options)
    whole.assert_outcomes(passed=2, failed=2)
    differs = "  3 * REPLICATED *; differs from what was planted: binding.key_dominance"
    whole.stdout.fnmatch_lines(["The paper's headline claims *", "planted:*", differs, "  claim *paper *verdict"])
    chosen = pytester.runpytest_inprocess(*options, "-m", "headline", "--collect-only", "-q")
    assert sum("::" in line for line in chosen.outlines) == 2
