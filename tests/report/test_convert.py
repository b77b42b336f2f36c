"""A report that was written with schema 1 is read, converted, and makes a page; the old file stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rebinding.__main__ import main
from rebinding.report.convert import convert
from rebinding.report.folder import CLAIMS, ReportError, read
from rebinding.report.schema import DERIVED, LETTERS, SCHEMA, lines, upgraded
from rebinding.verdicts.outcome import OUTCOMES

OLD = Path(__file__).parent / "data" / "schema1.json"
"""Three rows as an earlier version left them."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copyfile(OLD, folder / CLAIMS)
    return folder


def test_an_old_report_is_converted(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(old)]) == 0
    said = capsys.readouterr().out
    assert "had schema 1: converted to schema 2, and kept as claims.schema1.json" in said
    assert (old / "claims.schema1.json").read_bytes() == OLD.read_bytes()
    content = json.loads((old / CLAIMS).read_text("utf-8"))
    assert content["schema"] == SCHEMA
    assert content["models"][0]["graph"] is None
    rows = {one["id"]: one for one in content["claims"]}
    pointer, controlled = rows["roles.b_is_the_pointer"], rows["roles.b_is_the_pointer.controlled"]
    assert [pointer[name] for name in DERIVED] == ["roles", controlled["place"], "N", "refuted"]
    assert [rows["circuit.compact"][name] for name in ("section", "letter", "standing")] == ["circuit", "R", None]
    assert rows["circuit.compact"]["place"] < pointer["place"]
    assert "roles.b_is_the_pointer.controlled" in (old / "index.html").read_text("utf-8")


def test_it_is_converted_once(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(old)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    assert convert(old) is None
    assert main(["report", str(old)]) == 0
    assert "schema" not in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in old.iterdir() if path.name in before} == before


def test_both_schemas_say_the_same(old: Path) -> None:
    first = read(old)
    convert(old)
    second = read(old)
    assert len(first.claims) == 3
    assert first.claims == second.claims
    assert [one.about for one in first.models] == [one.about for one in second.models]


@pytest.mark.parametrize("schema", [0, 3, True, "1", None, [1]])
def test_no_other_schema_is_read(old: Path, schema: object) -> None:
    content = json.loads((old / CLAIMS).read_text("utf-8"))
    (old / CLAIMS).write_text(json.dumps(content | {"schema": schema}))
    with pytest.raises(ReportError, match="this version reads 1 to 2"):
        convert(old)


def test_twins_have_the_name_of_their_combination() -> None:
    """Which of them is the published one matters: an artifact holds as published, and what is hidden does not."""
    rows = [
        {"id": f"a.x{ending}", "sentence": "a.x", "model": model, "verdict": verdict}
        for model, verdicts in {
            "one": ("REPLICATED", "NOT REPLICATED"),
            "two": ("NOT REPLICATED", "REPLICATED"),
        }.items()
        for ending, verdict in zip(("", ".controlled"), verdicts, strict=True)
    ]
    assert [one["standing"] for one in lines(rows)] == ["artifact", "artifact", "hidden", "hidden"]
    assert [one["letter"] for one in lines(rows)] == ["R", "N", "N", "R"]
    assert lines(rows[:1])[0]["standing"] is None


def test_what_nobody_wrote_down_is_null() -> None:
    entry = {"file": "x.parquet", "seconds": 1.0}
    old = {"schema": 1, "models": [{"name": "m", "evidence": {"roles: N 1 #1": entry}}], "claims": []}
    assert upgraded(old)["models"] == [
        {"name": "m", "evidence": {"roles: N 1 #1": {**entry, "pair": None}}, "graph": None}
    ]
    new = {**old, "schema": SCHEMA}
    assert upgraded(new) == new


def test_every_verdict_has_a_letter() -> None:
    assert set(LETTERS) == set(OUTCOMES)
    assert len(set(LETTERS.values())) == len(LETTERS)
