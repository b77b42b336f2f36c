"""Rows in any folder are judged by the plugin that pytest finds, and other runs notice nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from claims.catalogue import claim
from fixtures.judging import expected_verdict
from rebinding.cli.commands import main
from rebinding.cli.new_suite import TEMPLATE
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.testing import Claim, Verdict
from tests.claims import forked_pytest
from tests.models.folders import save_tiny

ROOT = Path(__file__).parents[2]
PLANT = ("--model", "planted:pointer")
SUITE = """
import pandas as pd
from rebinding.testing import effect, row

def count(model, n, sizes):
    with open("calls", "a") as file:
        file.write("called ")
    return pd.DataFrame({COLUMN: range(n), "value": [sizes[at % 2] for at in range(n)]})

@row("mine.sizes", "Sizes are large.", source="ours", kind="effect", statistic="mean", where="here", n=12,
     models=("planted:pointer@llama",), controlled={"statistic": "the same"})
def test_sizes(claim, study):
    return effect(study.measure(claim, FUNCTION, n=NUMBER, sizes=[0.9, 1.1])["value"], margin=MARGIN)
"""


def run(folder: Path, *arguments: str) -> CompletedProcess[str]:
    """`python -m pytest` in a folder that knows nothing of this repository, with the plugin that an installed package
    has; an environment without its entry point finds it by name."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "PYTEST_ADDOPTS": ""}
    options = ("-p", "rebinding.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(folder))
    return forked_pytest.pytest([*options, *arguments], folder, environment)


def write_suite(
    folder: Path,
    *,
    column: str = "prompt",
    number: str = "study.n(claim)",
    margin: float = 0.5,
    function: str = "count",
) -> Path:
    text = (
        SUITE.replace("FUNCTION", function)
        .replace("COLUMN", repr(column))
        .replace("NUMBER", number)
        .replace("MARGIN", str(margin))
    )
    (folder / "test_mine.py").write_text(text)
    return folder


def rows_of(folder: Path) -> list[dict[str, object]]:
    content: list[dict[str, object]] = json.loads((folder / "report" / "claims.json").read_text())["claims"]
    return content


def test_rows_in_any_folder_are_judged_reported_and_measured_once(tmp_path: Path) -> None:
    """Both rows share the measurement, and so does a second run; JUnit has verdict, interval and margin."""
    write_suite(tmp_path)
    options = (*PLANT, "--store", "store", "--report", "report", "--junitxml", "junit.xml")
    for _ in range(2):
        done = run(tmp_path, *options)
        assert done.returncode == 0, done.stdout
    assert (tmp_path / "calls").read_text() == "called "
    rows = rows_of(tmp_path)
    assert [(row["id"], row["verdict"], row["expected"], row["n"]) for row in rows] == [
        ("mine.sizes", "REPLICATED", "REPLICATED", 12),
        ("mine.sizes.controlled", "REPLICATED", "REPLICATED", 12),
    ]
    assert rows[0]["command"] == (
        "pytest 'test_mine.py::test_sizes[planted:pointer@llama-mine.sizes]' --model planted:pointer@llama"
    )
    assert [str(row["evidence"]).partition(",")[0] for row in rows] == ["['measurement: design own"] * 2
    page = (tmp_path / "report" / "index.html").read_text()
    assert "1 claim, tested on 1 model" in page
    assert "A retrieval conditioned" not in page
    case = ET.parse(tmp_path / "junit.xml").getroot().find(".//testcase")
    assert case is not None
    properties = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    assert properties["verdict"] == "REPLICATED"
    assert float(properties["low"] or "") < 1 < float(properties["high"] or "")
    assert properties["margin"] == "0.5"


def test_a_changed_file_is_measured_again(tmp_path: Path) -> None:
    for margin in (0.5, 0.6):
        assert run(write_suite(tmp_path, margin=margin), *PLANT, "--store", "store").returncode == 0
    assert (tmp_path / "calls").read_text() == "called called "


def test_an_asserted_row_that_fails_fails_the_run(tmp_path: Path) -> None:
    done = run(write_suite(tmp_path, margin=2.0), *PLANT, "--no-store")
    assert done.returncode == 1
    assert "mine.sizes on planted:pointer@llama: NOT REPLICATED, expected REPLICATED" in done.stdout


def test_a_verdict_by_another_rule_is_no_verdict_of_the_claim(tmp_path: Path) -> None:
    path = write_suite(tmp_path) / "test_mine.py"
    path.write_text(path.read_text().replace('kind="effect"', 'kind="no-effect"'))
    done = run(tmp_path, *PLANT, "--no-store", "-k", "not controlled")
    assert done.returncode == 1
    assert (
        "1 rows ended with an error and have no verdict, here and in a report: test_mine.py::test_sizes[" in done.stdout
    )
    assert "mine.sizes is declared as no-effect, and its test returned a verdict by effect" in done.stdout


def test_a_folder_asserted_by_its_own_name_is_that_model(tmp_path: Path) -> None:
    """And the command of a row is one of the folder in which the run began, wherever its root is."""
    suite = tmp_path / "suite"
    suite.mkdir()
    path = write_suite(suite, margin=2.0) / "test_mine.py"
    path.write_text(path.read_text().replace("planted:pointer@llama", "tiny"))
    save_tiny(tmp_path / "models" / "tiny")
    done = run(tmp_path, "suite", "--model", str(tmp_path / "models" / "tiny"), "--no-store", "--report", "report")
    assert done.returncode == 1
    assert "NOT REPLICATED, expected REPLICATED" in done.stdout
    assert str(rows_of(tmp_path)[0]["command"]).startswith("pytest 'suite/test_mine.py::test_sizes[")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"column": "number"},
            "count returned a data frame with the columns 'number', 'value', expected a data frame with a",
        ),
        ({"number": "7"}, "the evidence has 7 units, the claim declares 12"),
        (
            {"function": "lambda model, **options: count(model, 12, [1.0, 1.0])"},
            "a function at the top level of its file",
        ),
        ({"number": "object()"}, "the arguments of count are part of the name of its evidence"),
    ],
)
def test_measurements_that_are_no_evidence(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    done = run(write_suite(tmp_path, **changes), *PLANT, "--no-store", "-k", "not controlled")
    assert done.returncode == 1
    assert message in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "test_mine.py::test_sizes is judged on models that are named: pytest test_mine.py --model NAME"),
        (("--cost", "--model", "llama3.2-3b"), "--simulate and --cost are about the paper's claims"),
    ],
)
def test_runs_that_are_made_for_the_paper(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = run(write_suite(tmp_path), *options)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert message in done.stdout


PLAIN = """
def test_plain(request):
    names = {name for name, _ in request.config.pluginmanager.list_name_plugin()}
    assert not [name for name in names if "fixtures." in name]
    assert "rebinding.pytest_plugin" in names
"""


def test_a_run_without_rows_notices_nothing(tmp_path: Path) -> None:
    """The plugin of the claims is not loaded, and another --model is nobody's business."""
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--model')\n")
    (tmp_path / "test_plain.py").write_text(PLAIN)
    done = run(tmp_path, "--model", "theirs")
    assert done.returncode == 0, done.stdout
    assert "verdicts" not in done.stdout
    assert run(tmp_path, "--help").returncode == 0


def test_options_of_another_plugin_that_meet_those_of_the_claims_are_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--samples')\n")
    done = run(write_suite(tmp_path), *PLANT)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the options of the claims meet others of the same name" in done.stdout + done.stderr
    assert "--samples" in done.stdout + done.stderr


def test_a_clone_has_the_plugin_once(pytestconfig: pytest.Config) -> None:
    plugins = [name for name, _ in pytestconfig.pluginmanager.list_name_plugin() if name.endswith("fixtures.options")]
    assert plugins == ["fixtures.options"]


def test_a_new_suite_is_judged_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-suite", "mine"]) == 0
    path, command = capsys.readouterr().out.splitlines()
    assert path == "written: mine/test_claims.py"
    words = command.removeprefix("judge it: pytest ").split()
    done = run(tmp_path, *words, "--no-store")
    assert done.returncode == 0, done.stdout
    ((id, verdict),) = [(row["id"], row["verdict"]) for row in rows_of(tmp_path)]
    assert (id, verdict) == ("mine.head", "REPLICATED")
    assert main(["new-suite", "mine"]) == 2
    assert "is not overwritten" in capsys.readouterr().err


def test_the_page_shows_the_suite_that_is_written() -> None:
    assert TEMPLATE.read_text("utf-8") in (ROOT / "docs" / "how-to" / "your-own-claims.md").read_text("utf-8")


def test_a_folder_with_the_name_of_a_papers_model_is_another_model(tmp_path: Path) -> None:
    """The paper asserts nothing of it, whatever a claim of one's own says about the name."""
    folder = save_tiny(tmp_path / "llama3.2-3b")
    model = ModelUnderTest(parse_model(str(folder)), Settings(()))
    of_paper, other = (
        claim("binding.key_dominance"),
        Claim("a.b", "", "", "effect", (), "", "", models=("llama3.2-3b",)),
    )
    verdict = Verdict("effect", "REPLICATED", "")
    assert "llama3.2-3b" in of_paper.models
    assert (expected_verdict(of_paper, model, verdict), expected_verdict(other, model, verdict)) == (None, "REPLICATED")


def test_imports_are_frozen_once_and_collecting_goes_on() -> None:
    code = """
import gc
from rebinding.pytest_plugin import without_collecting
with without_collecting():
    assert not gc.isenabled()
frozen = gc.get_freeze_count()
assert gc.isenabled() and frozen
with without_collecting():
    held = [object()]
assert gc.isenabled() and gc.get_freeze_count() == frozen
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_of_claims_does_not_import_hypothesis() -> None:
    """Its plugin for pytest would, at the end of every run."""
    code = (
        "import sys, pytest; sys.exit(pytest.main(['claims', '--collect-only', '-q']) or 'hypothesis' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
