"""docs/report.md describes a report: compared with what the plugin writes, with and without workers."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rebinding.evidence.certificates import certificate_file, save_certificate
from rebinding.experiments.binding.measure import run_binding
from rebinding.experiments.circuit.measure import in_orders
from rebinding.experiments.paths.summary import reselected
from rebinding.experiments.random_draws import PUBLISHED_NOISE, draw_circuits
from rebinding.models import load
from rebinding.paper.certificate import summarise
from rebinding.report.page import PAGE  # with matplotlib, which a run within a run must not load a second time
from rebinding.report.tables import SEEDS
from tests.claims.test_plugin import ROWS
from tests.paper.certificates import make_certificate, make_result

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "report.md"
TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "whole number": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "list": (list,),
    "object": (dict,),
}


def read_field_types(title: str) -> dict[str, tuple[type, ...]]:
    """Names and types in the table under a title."""
    text = DOCUMENT.read_text("utf-8")
    (table,) = re.findall(rf"^### {title}$(.*?)(?=^##|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", table, flags=re.MULTILINE)
    return {name: tuple(kind for text in types.split(" or ") for kind in TYPES[text.strip()]) for name, types in rows}


def check_fields(entry: dict[str, Any], title: str) -> None:
    """The entry has the fields that the document lists, each of a documented type."""
    types = read_field_types(title)
    assert set(entry) == set(types)
    wrong = {name: value for name, value in entry.items() if not isinstance(value, types[name])}
    assert not wrong


@pytest.fixture
def report_folder(pytester: pytest.Pytester) -> Path:
    """A report of four rows on a planted model."""
    pytester.makepyfile(test_small=ROWS.replace("measured=1.0", "measured=1.0, sample=(1.0, 2.0)"))
    options = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess("-p", "fixtures.plugin", *options, "--report", "out").assert_outcomes(
        passed=2, failed=2
    )
    return pytester.path / "out"


def test_the_report_is_as_documented(report_folder: Path) -> None:
    content = json.loads((report_folder / "claims.json").read_text("utf-8"))
    check_fields(content, "the file")
    check_fields(content["settings"], "settings")
    for model in content["models"]:
        check_fields(model, "models")
        assert all(set(entry) == {"file", "kind", "seconds", "pair"} for entry in model["evidence"].values())
        assert all((report_folder / "evidence" / entry["file"]).is_file() for entry in model["evidence"].values())
    for claim in content["claims"]:
        check_fields(claim, "claims")
    assert [claim["model"] for claim in content["claims"]] == ["planted:pointer@llama"] * 4
    assert {"torch", "python", "transformers"} <= set(content["software"])
    assert (report_folder / PAGE).is_file()
    (model,) = content["models"]
    assert len(model["fingerprint"]) == 64
    assert model["certificate"] is None
    assert model["certified"] == "Not certified: run `rebinding certify planted:pointer@llama`"
    assert pq.read_table(report_folder / "samples.parquet")["value"].to_pylist() == [1.0, 2.0] * 4
    first = DOCUMENT.read_text("utf-8").partition("## Reading")[0]
    listed = re.findall(r"^\| `([\w./*]+)` \|", first, flags=re.MULTILINE)
    assert {name.partition("/")[0] for name in listed} == {path.name for path in report_folder.iterdir()}


@pytest.mark.slow
def test_a_saved_certificate_is_in_the_report(pytester: pytest.Pytester) -> None:
    """It is found by the fingerprint of the model, in the folder of the evidence."""
    model = load("planted:pointer")
    certificate = make_certificate(make_result(deviation=0.75), fingerprint=model.fingerprint)
    save_certificate(certificate, certificate_file(pytester.path / "store", model.fingerprint))
    pytester.makepyfile(test_small=ROWS)
    options = ("--model", "planted:pointer", "--samples", "12", "--store", "store", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess("-p", "fixtures.plugin", *options, "--report", "out")
    (entry,) = json.loads((pytester.path / "out" / "claims.json").read_text("utf-8"))["models"]
    assert entry["certificate"] == summarise(certificate)
    assert entry["certified"] == certificate.sentence
    assert certificate.sentence in (pytester.path / "out" / PAGE).read_text("utf-8")


@pytest.mark.slow
def test_workers_leave_one_report(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker knows of its model, and the numbers behind its verdicts, arrive where the report is written."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_small=ROWS.replace("measured=1.0", "measured=1.0, sample=(1.0, 2.0)"))
    options = ("--model", "planted:pointer", "--samples", "12", "--no-store", "-p", "no:cacheprovider", "-n", "1")
    pytester.runpytest_subprocess("-p", "fixtures.plugin", *options, "--report", "out").assert_outcomes(
        passed=2, failed=2
    )
    folder = pytester.path / "out"
    content = json.loads((folder / "claims.json").read_text("utf-8"))
    check_fields(content["models"][0], "models")
    assert len(content["claims"]) == 4
    assert pq.read_table(folder / "samples.parquet")["value"].to_pylist() == [1.0, 2.0] * 4
    assert sorted(path.name for path in (folder / "evidence").iterdir()) == sorted(
        entry["file"] for entry in content["models"][0]["evidence"].values()
    )


def test_a_command_judges_one_claim_alone(report_folder: Path, pytester: pytest.Pytester) -> None:
    """Exactly what the page prints collects exactly one test: that of its claim, with the options of the run."""
    claims = json.loads((report_folder / "claims.json").read_text("utf-8"))["claims"]
    assert len({claim["command"] for claim in claims}) == len(claims)
    for claim in claims[:2]:
        program, test, *options = shlex.split(claim["command"])
        assert (program, options) == ("pytest", ["--model", "planted:pointer@llama", "--samples", "12"])
        listed = pytester.runpytest_inprocess("-p", "fixtures.plugin", test, *options, "--collect-only", "-q")
        assert [line for line in listed.outlines if "::" in line] == [test]
        assert claim["id"] in test


def test_the_seeds_are_those_of_the_code() -> None:
    made_by = {
        "random circuits": draw_circuits,
        "order of the pruning walks": in_orders,
        "matched random directions, and control heads": run_binding,
        "resampled selections of heads": reselected,
    }
    assert SEEDS.keys() - made_by.keys() == {"published random directions", "prompts"}
    assert SEEDS["published random directions"] == ", ".join(f"{name} {seed}" for name, seed in PUBLISHED_NOISE.items())
    for name, function in made_by.items():
        assert SEEDS[name] == str(inspect.signature(function).parameters["seed"].default)
