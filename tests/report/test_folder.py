"""The folder of a report: its files, and the folders that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rebinding.report.files import CLAIMS, EVIDENCE, SAMPLES, ReportError, evidence_file
from rebinding.report.folder import read
from rebinding.verdicts import effect, no_effect, ordering, overlap
from tests.report.folders import make, make_row


def test_what_is_written_is_read(tmp_path: Path) -> None:
    claims = [make_row(), make_row(verdict="INVALID", gate="group_present", measured=None, sample=())]
    run = read(make(tmp_path / "r", claims[:1]))
    assert run.claims == tuple(claims[:1])
    (model,) = run.models
    assert model.about["layers"] == 4
    assert len(model.evidence["binding-published-60"].rows) == 40


def test_tables_are_tidy(tmp_path: Path) -> None:
    """A row per claim and model, and a row per claim, model and unit."""
    claims = [make_row(part=("keys", "dR")), make_row(model="other", sample=(1.0, 2.0))]
    folder = make(tmp_path / "r", claims)
    table = pd.read_csv(folder / "claims.csv")
    assert table["part"].fillna("").tolist() == ["keys: dR", ""]
    assert table["model"].tolist() == ["planted:pointer@llama", "other"]
    assert table["measured"].tolist() == [1.0, 1.0]
    samples = pd.read_parquet(folder / SAMPLES)
    assert samples.columns.tolist() == ["claim", "model", "unit", "value"]
    assert samples[samples["model"] == "other"]["value"].tolist() == [1.0, 2.0]
    assert len(samples) == 62


def test_names_never_share_a_file() -> None:
    names = ["a b", "a-b", "A b", "a", "ä", "<script>", "x" * 500, "x" * 501]
    files = {evidence_file(model, name) for model in names for name in names}
    assert len(files) == len(names) ** 2
    assert all(len(name) < 255 and "/" not in name and name.isascii() for name in files)


def test_a_folder_without_claims_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"holds no claims\.json: .*--report"):
        read(tmp_path)


def test_a_folder_without_its_evidence_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", [make_row()])
    for path in (folder / EVIDENCE).glob("*binding*"):
        path.unlink()
    with pytest.raises(ReportError, match="lacks 3 of its 22 files of evidence"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has schema None"),
        ('{"schema": 4}', "claims is missing"),
        *(
            (f'{{"schema": {schema}}}', "has schema .*; this version reads 4: run the claims again")
            for schema in ("0", "3", "99", "true", '"4"', "null", "[4]")
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / CLAIMS).write_text(text)
    with pytest.raises(ReportError, match=message):
        read(tmp_path)


def test_the_deciding_part_is_written_and_read(tmp_path: Path) -> None:
    """An older report may lack it."""
    row = make_row(verdict="INCONCLUSIVE", part=("keys", "dR"), unidentified=True)
    folder = make(tmp_path / "r", [row], bare=True)
    assert read(folder).claims == (row,)
    content = json.loads((folder / CLAIMS).read_text())
    assert content["claims"][0]["part"] == ["keys", "dR"]
    del content["claims"][0]["part"], content["claims"][0]["unidentified"]
    (folder / CLAIMS).write_text(json.dumps(content))
    assert read(folder).claims == (replace(row, part=(), unidentified=False),)


def test_two_procedures_of_a_sentence_have_a_standing(tmp_path: Path) -> None:
    """An artifact holds as published alone, a hidden sentence as controlled alone."""
    cases = {"m1": ("REPLICATED", "NOT REPLICATED"), "m2": ("NOT REPLICATED", "REPLICATED")}
    rows = [
        make_row(f"a.x{ending}", model, sentence="a.x", verdict=verdict)
        for model, verdicts in cases.items()
        for ending, verdict in zip(("", ".controlled"), verdicts, strict=True)
    ]
    folder = make(tmp_path / "r", [*rows, make_row("a.y", "m2", sentence="a.y")], bare=True)
    claims = json.loads((folder / CLAIMS).read_text())["claims"]
    assert [row["standing"] for row in claims] == ["artifact", "artifact", "hidden", "hidden", None]
    assert [row["letter"] for row in claims] == ["R", "N", "N", "R", "R"]


def test_a_verdict_carries_the_numbers_behind_it() -> None:
    """One number per unit, the value that they are compared with, and the mean over several draws."""
    assert effect([1.0, 2.0, 3.0, 4.0, 5.0], margin=0.1, above=0.5).sample == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert effect([1.0, 2.0], margin=0.1, above=0.5).against == 0.5
    assert no_effect([0.25] * 5, margin=0.1).sample == (0.25,) * 5
    nested = ordering([3.0] * 5, [[1.0] * 5, [2.0] * 5], margin=0.1, unit="nested")
    assert nested.sample == (1.5,) * 5
    assert overlap({1}, {1}, universe=100, repetitions=[({1}, {1}), ({1}, {2})]).sample == (1.0, 0.0)
