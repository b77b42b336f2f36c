"""Hostile reports: every field is checked, nothing outside the folder is read or written, names stay text."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebinding.cli.commands import main
from rebinding.report.files import CLAIMS, EVIDENCE, SAMPLES
from rebinding.report.folder import read
from rebinding.report.page import html
from tests.oracles.faults.damages import claiming, unfolding
from tests.report.folders import make, make_row

Change = Callable[[dict[str, Any]], object]
SECRET = "somebody's only copy"


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "r", [make_row()])


@pytest.fixture
def folder(report_folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text(SECRET)
    return Path(shutil.copytree(report_folder, tmp_path / "r"))


def model(**fields: Any) -> Change:
    return lambda content: content["models"][0].update(fields)


def claim(**fields: Any) -> Change:
    return lambda content: content["claims"][0].update(fields)


def file(name: Any) -> Change:
    """The first piece of evidence lies elsewhere."""
    return lambda content: next(iter(content["models"][0]["evidence"].values())).update(file=name)


def set_value(name: str, value: Any) -> Change:
    return lambda content: content.update({name: value})


LIES: dict[str, tuple[Change, str]] = {
    "models are an object": (set_value("models", {}), "models is {}: it should be a valid list"),
    "claims are text": (set_value("claims", "x"), "claims is 'x': it should be a valid list"),
    "settings are a list": (set_value("settings", [1]), "settings is [1]: it should be a valid dictionary"),
    "a model is a number": (set_value("models", [3]), "models[0] is 3: it should be a valid dictionary"),
    "a claim is a list": (set_value("claims", [[]]), "claims[0] is []: it should be a valid dictionary"),
    "a name that is none": (model(name=["x"]), "models[0].name is ['x']: it should be a valid string"),
    "a billion layers": (
        model(layers=10**9),
        "models[0].layers is 1000000000: it should be less than or equal to 10000",
    ),
    "heads below nothing": (model(heads=-1), "models[0].heads is -1"),
    "evidence is a list": (model(evidence=[1]), "models[0].evidence is [1]: it should be a valid dictionary"),
    "evidence without a file": (model(evidence={"a": {}}), "models[0].evidence.a.file is missing"),
    "stages of nothing": (model(stages={"A": "nowhere"}), "names 'nowhere', which is no evidence"),
    "a number in words": (claim(measured="1"), "claims[0].measured is '1': it should be a valid number"),
    "a count that is true": (claim(n=True), "claims[0].n is True: it should be a valid integer"),
    "a verdict that is none": (claim(verdict=None), "claims[0].verdict is None: it should be a valid string"),
    "a section that is none": (claim(section="6"), "claims[0].section is '6': it should be 'tracing'"),
    "evidence by number": (claim(evidence=[1]), "claims[0].evidence[0] is 1: it should be a valid string"),
    "no such number": (claim(measured=float("nan")), "NaN is no number"),
    "a field nobody knows": (claim(mood="\x1b[31mred"), "claims[0].mood is"),
    "a file above": (file("../../outside"), "it is not in the report's folder"),
    "a file at the root": (file("/etc/passwd"), "it is not in the report's folder"),
    "a file of another system": (file("..\\x"), "it is not in the report's folder"),
    "a file that is a number": (file(3), "file is 3: it should be a valid string"),
}


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one message with which the verb ends; it shows nothing that steers a terminal."""
    assert main(["report", str(folder)]) == 2
    out, output = capsys.readouterr()
    assert out == ""
    assert output.startswith("rebinding report: ")
    assert output.replace("\n", "").isprintable()
    assert not (folder / "index.html").exists()
    return output


@pytest.mark.parametrize("lie", LIES)
def test_every_field_is_checked(lie: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = LIES[lie]
    content = json.loads((folder / CLAIMS).read_text("utf-8"))
    change(content)
    (folder / CLAIMS).write_text(json.dumps(content))
    assert message in refused(folder, capsys)


def test_a_million_brackets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / CLAIMS).write_text("[" * 1_000_000)
    assert "is not JSON" in refused(folder, capsys)


@pytest.mark.parametrize("bomb", [claiming, unfolding])
@pytest.mark.parametrize("place", [SAMPLES, EVIDENCE])
def test_tables_that_are_larger_than_memory(
    bomb: Callable[[bytes], bytes], place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / SAMPLES if place == SAMPLES else sorted((folder / EVIDENCE).iterdir())[0]
    path.write_bytes(bomb(pq.read_schema(path).metadata.get(b"rebinding", b"{}")))
    assert "the largest size of evidence" in (output := refused(folder, capsys)) or "evidence has at most" in output


def test_tables_of_something_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid evidence of a kind, whose columns are another's."""
    for path in (folder / EVIDENCE).iterdir():
        note = pq.read_schema(path).metadata
        pq.write_table(pa.table({"x": ["=1+1"]}).replace_schema_metadata(note), path)
    assert "no page can be made of the evidence" in refused(folder, capsys)


@pytest.mark.parametrize("file", [EVIDENCE, SAMPLES])
def test_links_out_of_the_folder_are_not_followed(
    file: str, folder: Path, report_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / SAMPLES if file == SAMPLES else sorted((folder / EVIDENCE).iterdir())[0]
    path.unlink()
    path.symlink_to(report_folder / path.relative_to(folder))
    assert "leads out of" in refused(folder, capsys)


@pytest.mark.slow
def test_a_page_is_not_written_through_a_link(folder: Path) -> None:
    (folder / "index.html").symlink_to(folder.parent / "outside")
    assert main(["report", str(folder)]) == 0
    assert (folder.parent / "outside").read_text() == SECRET
    assert not (folder / "index.html").is_symlink()


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1"]


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    """Names as a spreadsheet would run them; numbers stay numbers, with their sign."""
    claims = [make_row(model=name, reason=name, measured=-1.5, evidence=(name,)) for name in FORMULAS]
    with (make(tmp_path / "r", claims, bare=True) / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [f"'{name}" for name in FORMULAS]
    assert {row["measured"] for row in rows} == {"-1.5"}
    cells = [value for row in rows for name, value in row.items() if name != "measured"]
    assert not [cell for cell in cells if cell.startswith(tuple("=+-@\t\r\n"))]


def test_the_page_may_fetch_and_send_nothing(folder: Path) -> None:
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'"
    hashed = re.escape(f"content=\"{policy}; script-src 'sha256-") + r"[\w+/=]+'\""
    assert re.search(hashed, html(read(folder)))
