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
from tests.evidence.stores import BOMBS, write_bomb
from tests.report.folders import make, make_row

SECRET = "somebody's only copy"


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole") / "r", [make_row()])


@pytest.fixture
def folder(report_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(report_folder, tmp_path / "r"))


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one message with which the verb ends; it shows nothing that steers a terminal."""
    assert main(["report", str(folder)]) == 2
    out, output = capsys.readouterr()
    assert out == ""
    assert output.startswith("rebinding report: ")
    assert output.replace("\n", "").isprintable()
    assert not (folder / "index.html").exists()
    return output


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("models", {"name": ["x"]}, "models[0].name is ['x']: it should be a valid string"),
        ("models", {"layers": 10**9}, "models[0].layers is 1000000000: it should be less than or equal to 10000"),
        ("models", {"evidence": {"a": {}}}, "models[0].evidence.a.file is missing"),
        ("models", {"stages": {"A": "nowhere"}}, "names 'nowhere', which is no evidence"),
        ("claims", {"n": True}, "claims[0].n is True: it should be a valid integer"),
        ("claims", {"measured": float("nan")}, "NaN is no number"),
        ("claims", {"mood": "\x1b[31mred"}, "claims[0].mood is"),
        ("models", {"evidence": {"a": {"file": "../../outside"}}}, "it is not in the report's folder"),
        ("models", {"evidence": {"a": {"file": "/etc/passwd"}}}, "it is not in the report's folder"),
        ("models", {"evidence": {"a": {"file": "..\\x"}}}, "it is not in the report's folder"),
    ],
)
def test_every_field_is_checked(
    kind: str, fields: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Types, sizes and names; that every field has its type is a matter of `tests/report/test_json_schemas.py`."""
    content = json.loads((folder / CLAIMS).read_text("utf-8"))
    content[kind][0].update(fields)
    (folder / CLAIMS).write_text(json.dumps(content))
    assert message in refused(folder, capsys)


def test_a_million_brackets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / CLAIMS).write_text("[" * 1_000_000)
    assert "is not JSON" in refused(folder, capsys)


def first_file(folder: Path, kind: str) -> Path:
    """The table of samples, or the first file of evidence."""
    return folder / SAMPLES if kind == SAMPLES else sorted((folder / EVIDENCE).iterdir())[0]


@pytest.mark.parametrize(("kind", "bomb"), [(SAMPLES, BOMBS[0]), (EVIDENCE, BOMBS[1])])
def test_tables_that_are_larger_than_memory(
    kind: str, bomb: Callable[[], pa.Array], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bomb(bomb, first_file(folder, kind))
    assert "the largest size of evidence" in (output := refused(folder, capsys)) or "evidence has at most" in output


def test_tables_of_something_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid evidence of a kind, whose columns are another's."""
    for path in (folder / EVIDENCE).iterdir():
        note = pq.read_schema(path).metadata
        pq.write_table(pa.table({"x": ["=1+1"]}).replace_schema_metadata(note), path)
    assert "no page can be made of the evidence" in refused(folder, capsys)


@pytest.mark.parametrize("kind", [EVIDENCE, SAMPLES])
def test_links_out_of_the_folder_are_not_followed(
    kind: str, folder: Path, report_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = first_file(folder, kind)
    path.unlink()
    path.symlink_to(report_folder / path.relative_to(folder))
    assert "leads out of" in refused(folder, capsys)


def test_a_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", [make_row()], bare=True)
    (tmp_path / "outside").write_text(SECRET)
    (folder / "index.html").unlink(missing_ok=True)
    (folder / "index.html").symlink_to(tmp_path / "outside")
    assert main(["report", str(folder)]) == 0
    assert (tmp_path / "outside").read_text() == SECRET
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


def test_the_page_may_fetch_and_send_nothing(tmp_path: Path) -> None:
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'"
    hashed = re.escape(f"content=\"{policy}; script-src 'sha256-") + r"[\w+/=]+'\""
    assert re.search(hashed, html(read(make(tmp_path / "r", [make_row()], bare=True))))
