"""The pytest plugin in small runs: effects of a verdict on a test, on the run and on the files written; a page before
the end; the progress of a run; how long rows take beside their cost.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fixtures.estimate import FILE, TimeEstimate, compare, read_estimate
from rebinding.planted import build
from tests.claims.forked_pytest import HEAVY
from tests.claims.run_claims import ROOT, save_model, save_random

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
PLUGIN = ("-p", "fixtures.plugin", "-p", "no:cacheprovider")
SMALL = ("--samples", "12", "--no-store")
PLANT = ("--model", "planted:pointer", *SMALL)
Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    """What a run imports has to be here before: pytester forgets new modules, and torch registers operators once."""
    for name in (*HEAVY, "rebinding.report.page"):
        import_module(name)
    build("pointer")


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Judge rows in this process, by default those above; on the plant, truth says yes, no, no, yes."""

    def judged(*options: str, rows: str = ROWS) -> pytest.RunResult:
        pytester.makepyfile(test_small=rows)
        return pytester.runpytest_inprocess(*PLUGIN, *options)

    return judged


def test_a_planted_verdict_must_be_the_truth(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of more rows than a screen has is shortened, unless -v asks for every row."""
    monkeypatch.setattr("fixtures.verdict_table.SCREEN", 3)
    result = run(*PLANT, "--report", "out", "--junitxml", "out.xml", "-o", "junit_family=xunit1")
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
    for lines, is_short in ((result.outlines, True), (run(*PLANT, "-v").outlines, False)):
        assert lines.count("every row: -v, or the page of --report DIR") == is_short
        expected = "planted:pointer@llama binding.key_dominance: REPLICATED, expected NOT REPLICATED: as told"
        assert lines.count(expected) == is_short
        assert any(line.startswith("  binding.k_redirects ") for line in lines) != is_short


def test_a_row_that_returns_no_verdict_is_an_error(run: Run) -> None:
    result = run(*PLANT, "-k", "q_strongest", rows=ROWS.replace("    return Verdict(", "    Verdict("))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TypeError: the test of binding.q_strongest returned None; a test of a claim *"])


def test_inability_of_a_model_is_reported_once(run: Run, pytester: pytest.Pytester) -> None:
    """Every test fails, and counts; what is read is one sentence, and nothing of what libraries say while loading. A
    single failure is told by pytest."""
    options = ("--model", str(save_random(pytester.path / "model")), "--device", "cpu", *SMALL, "-q")
    result = run(*options, "--junitxml", "out.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["* of 24 answers are right, chance is 1/3 * nothing can be judged on this model"])
    result.stdout.fnmatch_lines(["  4 rows: INVALID (above_chance)"])
    result.stdout.no_fnmatch_line("*FAILURES*")
    result.stdout.no_fnmatch_line("FAILED *")
    assert (pytester.path / "out.xml").read_text().count("<failure") == 4
    single = run(*options, "-k", "q_redirects")
    single.assert_outcomes(failed=1)
    single.stdout.fnmatch_lines(["*FAILURES*", "binding.q_redirects on *: INVALID (above_chance), expected a valid *"])
    single.stdout.no_fnmatch_line("*Captured*")


def test_an_open_verdict_fails_a_run_only_if_asked(run: Run, pytester: pytest.Pytester) -> None:
    plant = build("pointer")
    folder = save_model(plant.model, plant.tokenizer, pytester.path / "model")
    for option, code in ((), 0), (("--strict-verdicts",), 1):
        selection = ("-k", "q_redirects or q_strongest")
        result = run("--model", str(folder), "--device", "cpu", *SMALL, *option, *selection)
        result.stdout.fnmatch_lines(["*1 reported, 1 inconclusive*"])
        assert result.ret == code


def test_the_papers_models_are_listed_and_refused_without_a_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = ("-m", "gpu", "-o", "markers=gpu: a GPU")
    listing = run(*options, "--collect-only", "-q")
    assert sum("llama3.1-8b" in line for line in listing.outlines) == 4
    refused = run(*options)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "need a CUDA device" in "\n".join([*refused.outlines, *refused.errlines])
    skipped = run(*options, "--skip-unavailable")
    skipped.assert_outcomes(skipped=16, deselected=12)


@pytest.mark.parametrize("marks", [None, "not gpu and not long", "not gpus"])
def test_marks_that_do_not_speak_of_gpu_leave_the_papers_models_out(run: Run, marks: str | None) -> None:
    """A `-m` on the command line takes the place of that in pytest.ini, which leaves them out."""
    markers = "markers=gpu: a GPU\nlong: takes long\ngpus: no such mark"
    listing = run("--collect-only", "-q", "-o", markers, *(("-m", marks) if marks else ()))
    tests = [line for line in listing.outlines if "::" in line]
    assert len(tests) == 12
    assert all("planted:" in line for line in tests)


HEADLINE_MARK = ("-o", "markers=headline: comes first")


def test_headline_claims_come_before_all_else(run: Run) -> None:
    """Chosen by their mark, whatever the procedure; the table of rows stands below them."""
    rows = ROWS.replace("models=())", 'models=(), headline=3 if name[0] == "k" else None)')
    full = run(*PLANT, *HEADLINE_MARK, rows=rows)
    full.assert_outcomes(passed=2, failed=2)
    differs = "  3 * REPLICATED *; differs from what was planted: binding.key_dominance"
    full.stdout.fnmatch_lines(["The paper's headline claims *", "planted:*", differs, "  claim *paper *verdict"])
    selection = run(*PLANT, *HEADLINE_MARK, "-m", "headline", "--collect-only", "-q", rows=rows)
    assert sum("::" in line for line in selection.outlines) == 2


# The page before the end: when the headline is judged, and after Ctrl-C

PAGED_ROWS = """
import json
from pathlib import Path
from claims.catalogue import rows
from rebinding.paper.claim import Claim
from rebinding.verdicts import Verdict

def row(name):
    return Claim("binding." + name, "A sentence.", "section 5", "effect", ("dR",), "mean", "group B", models=(),
                 headline=3 if name[0] == "q" else None)

@rows(row(name) for name in ("k_redirects", "key_dominance", "q_redirects", "q_strongest"))
def test_rows(claim, study):
    page = Path("out") / "claims.json"
    remaining = json.loads(page.read_text())["remaining"] if page.exists() else None
    with open("seen.txt", "a") as file:
        print(claim.id, remaining, file=file)
    STOP
    return Verdict("effect", "REPLICATED", "as told", measured=1.0, n=12)
"""
"""They note the rows in the order in which they are judged, each with the rows that the page says are left."""
PAGED = ("--model", "planted:pointer", "--no-store", "--report", "out", *HEADLINE_MARK)
LINES = {"a": 10.0, "b": 20.0, "c": 30.0}
"""Seconds of requests."""


def write_cost(folder: Path, model: str, rows: dict[str, list[str]]) -> None:
    """A cost.json with the requests of each row."""
    claims: list[Any] = [{"id": name, "keys": keys, "not_costed": None} for name, keys in rows.items()]
    claims.append({"id": "search", "keys": [], "not_costed": "search steps"})
    lines = {key: {"seconds": seconds} for key, seconds in LINES.items()}
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps({"models": [{"name": model, "lines": lines, "claims": claims}]}))


def test_headline_rows_come_first_and_the_page_is_there_when_they_are_judged(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    headline = ("binding.q_redirects", "binding.q_strongest")
    monkeypatch.setattr("fixtures.terminal.marks", lambda: dict.fromkeys(headline, "headline"))
    monkeypatch.setattr("fixtures.terminal.PAGE_INTERVAL", 0.0)
    rows = {"q_redirects": ["a", "b"], "q_strongest": ["b"], "k_redirects": ["b", "c"], "key_dominance": ["c"]}
    out = pytester.path / "out"
    write_cost(out, "planted:pointer@llama", {f"binding.{name}": keys for name, keys in rows.items()})
    result = run(*PAGED, rows=PAGED_ROWS.replace("STOP", ""))
    assert (pytester.path / "seen.txt").read_text().split() == [
        *("binding.q_redirects", "None", "binding.q_strongest", "None"),
        *("binding.k_redirects", "2", "binding.key_dominance", "2"),
    ]
    result.stdout.fnmatch_lines(
        ["planted:pointer@llama: all headline rows are judged", "written: *; 2 rows are not judged yet", "written: *"]
    )
    begin = "planted:pointer@llama: evidence of"
    result.stdout.fnmatch_lines(
        [f"{begin} 2 rows: * s; cost.json says 30 s*", f"{begin} 4 rows: * s; cost.json says 60 s*"]
    )
    assert json.loads((out / "claims.json").read_text())["remaining"] == 0
    assert "Unfinished" not in (out / "index.html").read_text()


def test_within_a_minute_no_page_is_written_before_the_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    headline = ("binding.q_redirects", "binding.q_strongest")
    monkeypatch.setattr("fixtures.terminal.marks", lambda: dict.fromkeys(headline, "headline"))
    result = run(*PAGED, rows=PAGED_ROWS.replace("STOP", ""))
    lines = [line for line in result.outlines if line.startswith("written: ")]
    assert len(lines) == 1
    assert "not judged yet" not in lines[0]
    result.stdout.fnmatch_lines(["planted:pointer@llama: all headline rows are judged"])


def test_after_ctrl_c_the_page_has_what_is_judged(run: Run, pytester: pytest.Pytester) -> None:
    stop = 'if claim.id == "binding.key_dominance": raise KeyboardInterrupt'
    result = run(*PAGED, rows=PAGED_ROWS.replace("STOP", stop))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["written: *; 1 rows are not judged yet"])
    content = json.loads((pytester.path / "out" / "claims.json").read_text())
    judged = {row["id"] for row in content["claims"]}
    assert judged == {"binding.q_redirects", "binding.q_strongest", "binding.k_redirects"}
    assert content["remaining"] == 1
    page = (pytester.path / "out" / "index.html").read_text("utf-8")
    assert "<strong>Unfinished:</strong> 1 row of the run is not judged yet" in page


def test_ctrl_c_before_the_first_verdict_leaves_an_older_page(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "out").mkdir()
    (pytester.path / "out" / "index.html").write_text("older")
    run(*PAGED, rows=PAGED_ROWS.replace("STOP", "raise KeyboardInterrupt"))
    assert (pytester.path / "out" / "index.html").read_text() == "older"
    assert not (pytester.path / "out" / "claims.json").exists()


# Time beside cost

ESTIMATE = TimeEstimate(LINES, {"first": ("a", "b"), "second": ("b", "c"), "third": ("a",)})


def test_a_request_of_several_rows_counts_once() -> None:
    assert ESTIMATE.at_best(["first"]) == 30
    assert ESTIMATE.at_best(["first", "second", "third"]) == 60
    assert ESTIMATE.at_best(["first", "unknown"]) is None


def test_the_comparison_states_the_ratio_and_the_rest() -> None:
    """30 s at best took 90 s; the other rows need request c alone, 30 s at best, so 90 s more."""
    sentence = compare(ESTIMATE, ["first"], ["second", "third"], 90.0) or ""
    assert "90 s; cost.json says 30 s at best, so 3.0 times as long" in sentence
    assert sentence.endswith("the other 2 take 1.5 minutes")
    assert "some of it was in the store" in (compare(ESTIMATE, ["first"], [], 3.0) or "")
    assert compare(ESTIMATE, ["unknown"], [], 3.0) is None
    assert compare(ESTIMATE, [], [], 3.0) is None


def test_an_estimate_is_read_as_cost_writes_it(tmp_path: Path) -> None:
    assert read_estimate(tmp_path, "m") is None
    write_cost(tmp_path, "m", {"first": ["a", "b"]})
    assert read_estimate(tmp_path, "m") == TimeEstimate(LINES, {"first": ("a", "b")})
    assert read_estimate(tmp_path, "other") is None
    for text in ("", "[]", '{"models": [{"name": "m"}]}', '{"models": [{"name": "m", "lines": 3}]}'):
        (tmp_path / FILE).write_text(text)
        assert read_estimate(tmp_path, "m") is None, "a file of another form is no estimate"


# Progress: a bar on a terminal, elsewhere a letter per test


def run_on_terminal(folder: Path, *options: str) -> str:
    """The output of such a run on a terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # without a size nothing is shown
    command = [sys.executable, "-m", "pytest", *PLUGIN, *PLANT, *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=child, stderr=child)
    os.close(child)
    output = b""
    while True:
        try:
            chunk = os.read(parent, 1 << 16)
        except OSError:  # on Linux, when the child has closed its end
            break
        if not chunk:
            break
        output += chunk
    os.close(parent)
    assert process.wait() == 1, "two of the four rows fail"
    return output.decode()


@pytest.mark.slow
def test_a_terminal_shows_where_the_run_is(pytester: pytest.Pytester) -> None:
    """Model, claim and experiment, how many of how many, and what is left; no letters, and the count at the end."""
    pytester.makepyfile(test_small=ROWS)
    output = run_on_terminal(pytester.path)
    lines = re.findall(r"(\d) of 4 claims, (\S+) left  planted:pointer@llama  ([\w.]+)(?:: ([\w-]+))?", output)
    assert lines
    assert [number for number, *_ in lines] == sorted(number for number, *_ in lines)
    assert {number for number, *_ in lines} >= {"0", "1", "2", "3"}
    assert {experiment for *_, experiment in lines} >= {"replays", "ability"}
    assert re.search(r"\d\d:\d\d", lines[-1][1]), "after the first claim it is known how long the others take"
    assert "2 failed, 2 passed" in output
    assert not re.search(r"[.F]{2,} *\[100%\]", output)


@pytest.mark.slow
def test_pytest_prints_letters_without_a_terminal(pytester: pytest.Pytester) -> None:
    """In a file, and on a terminal with -v, where every test has a line of its own."""
    pytester.makepyfile(test_small=ROWS)
    result = pytester.runpytest_subprocess(*PLUGIN, *PLANT)
    result.assert_outcomes(passed=2, failed=2)
    assert "claims," not in result.stdout.str()
    assert re.search(r"test_small\.py [.F]{4}", result.stdout.str())
    assert "of 4 claims" not in run_on_terminal(pytester.path, "-v")
