"""A page before the end: when the headline is judged, and after Ctrl-C; and how long rows take beside their cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.estimate import FILE, TimeEstimate, compare, read_estimate
from rebinding.planted import build

pytest_plugins = ["pytester"]

ROWS = """
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
ARGUMENTS = (
    "-p",
    "fixtures.plugin",
    "--model",
    "planted:pointer",
    "--no-store",
    "-p",
    "no:cacheprovider",
    "--report",
    "out",
)
MARKERS = ("-o", "markers=headline: comes first")


@pytest.fixture(autouse=True, scope="module")
def _modules() -> None:
    """What a run imports has to be here before: pytester forgets new modules, and torch registers operators once."""
    build("pointer")


def seen(pytester: pytest.Pytester) -> list[list[str]]:
    """The rows in the order in which they were judged, each with the rows that the page said were left."""
    return [line.split() for line in (pytester.path / "seen.txt").read_text().splitlines()]


def content(pytester: pytest.Pytester) -> Any:
    return json.loads((pytester.path / "out" / "claims.json").read_text())


def test_headline_rows_come_first_and_the_page_is_there_when_they_are_judged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.terminal.marks", lambda: dict.fromkeys(HEADLINE, "headline"))
    write_cost(pytester.path / "out", "planted:pointer@llama")
    pytester.makepyfile(test_small=ROWS.replace("STOP", ""))
    result = pytester.runpytest_inprocess(*ARGUMENTS, *MARKERS)
    assert seen(pytester) == [
        ["binding.q_redirects", "None"],
        ["binding.q_strongest", "None"],
        ["binding.k_redirects", "2"],
        ["binding.key_dominance", "2"],
    ]
    result.stdout.fnmatch_lines(
        ["planted:pointer@llama: all headline rows are judged", "written: *; 2 rows are not judged yet", "written: *"]
    )
    begin = "planted:pointer@llama: evidence of"
    result.stdout.fnmatch_lines(
        [f"{begin} 2 rows: * s; cost.json says 30 s*", f"{begin} 4 rows: * s; cost.json says 60 s*"]
    )
    assert content(pytester)["remaining"] == 0
    assert "Unfinished" not in (pytester.path / "out" / "index.html").read_text()


def test_after_ctrl_c_the_page_has_what_is_judged(pytester: pytest.Pytester) -> None:
    stop = 'if claim.id == "binding.key_dominance": raise KeyboardInterrupt'
    pytester.makepyfile(test_small=ROWS.replace("STOP", stop))
    result = pytester.runpytest_inprocess(*ARGUMENTS, *MARKERS)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["written: *; 1 rows are not judged yet"])
    judged = {row["id"] for row in content(pytester)["claims"]}
    assert judged == {"binding.q_redirects", "binding.q_strongest", "binding.k_redirects"}
    assert content(pytester)["remaining"] == 1
    assert "<strong>Unfinished:</strong> 1 row of the run is not judged yet" in (
        pytester.path / "out" / "index.html"
    ).read_text("utf-8")


def test_ctrl_c_before_the_first_verdict_leaves_an_older_page(pytester: pytest.Pytester) -> None:
    (pytester.path / "out").mkdir()
    (pytester.path / "out" / "index.html").write_text("older")
    pytester.makepyfile(test_small=ROWS.replace("STOP", "raise KeyboardInterrupt"))
    pytester.runpytest_inprocess(*ARGUMENTS, *MARKERS)
    assert (pytester.path / "out" / "index.html").read_text() == "older"
    assert not (pytester.path / "out" / "claims.json").exists()


HEADLINE = ("binding.q_redirects", "binding.q_strongest")
LINES = {"a": 10.0, "b": 20.0, "c": 30.0}
KEYS = {"first": ("a", "b"), "second": ("b", "c"), "third": ("a",)}


def test_a_request_of_several_rows_counts_once() -> None:
    estimate = TimeEstimate(LINES, KEYS)
    assert estimate.at_best(["first"]) == 30
    assert estimate.at_best(["first", "second", "third"]) == 60
    assert estimate.at_best(["first", "unknown"]) is None


def test_the_comparison_states_the_ratio_and_the_rest() -> None:
    """30 s at best took 90 s; the other rows need request c alone, 30 s at best, so 90 s more."""
    sentence = compare(TimeEstimate(LINES, KEYS), ["first"], ["second", "third"], 90.0)
    assert sentence is not None
    assert "90 s; cost.json says 30 s at best, so 3.0 times as long" in sentence
    assert sentence.endswith("the other 2 take 1.5 minutes")
    stored = compare(TimeEstimate(LINES, KEYS), ["first"], [], 3.0)
    assert stored is not None
    assert "some of it was in the store" in stored
    assert compare(TimeEstimate(LINES, KEYS), ["unknown"], [], 3.0) is None
    assert compare(TimeEstimate(LINES, KEYS), [], [], 3.0) is None


@pytest.mark.parametrize("text", ["", "[]", '{"models": [{"name": "m"}]}', '{"models": [{"name": "m", "lines": 3}]}'])
def test_a_file_of_another_form_is_no_estimate(text: str, tmp_path: Path) -> None:
    assert read_estimate(tmp_path, "m") is None
    (tmp_path / FILE).write_text(text)
    assert read_estimate(tmp_path, "m") is None


def write_cost(folder: Path, model: str) -> None:
    """A cost.json with two requests for each row above, some of them shared."""
    rows = {"q_redirects": ["a", "b"], "q_strongest": ["b"], "k_redirects": ["b", "c"], "key_dominance": ["c"]}
    claims = [{"id": f"binding.{name}", "keys": keys, "not_costed": None} for name, keys in rows.items()]
    lines = {key: {"seconds": seconds} for key, seconds in LINES.items()}
    folder.mkdir()
    (folder / FILE).write_text(json.dumps({"models": [{"name": model, "lines": lines, "claims": claims}]}))


def test_an_estimate_is_read_as_cost_writes_it(tmp_path: Path) -> None:
    model = {
        "name": "m",
        "lines": {key: {"seconds": seconds} for key, seconds in LINES.items()},
        "claims": [
            {"id": "first", "keys": ["a", "b"], "not_costed": None},
            {"id": "search", "keys": [], "not_costed": "search steps"},
        ],
    }
    (tmp_path / FILE).write_text(json.dumps({"models": [model]}))
    assert read_estimate(tmp_path, "m") == TimeEstimate(LINES, {"first": ("a", "b")})
    assert read_estimate(tmp_path, "other") is None
