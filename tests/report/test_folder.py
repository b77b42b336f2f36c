"""What a report's folder holds, and which folders are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rebinding.report.folder import CLAIMS, EVIDENCE, SAMPLES, ReportError, evidence_file, read
from rebinding.verdicts import effect, no_effect, ordering, overlap
from tests.report.folders import judged, make


def test_what_is_written_is_read(tmp_path: Path) -> None:
    claims = [judged(), judged(verdict="INVALID", gate="group_present", measured=None, sample=())]
    run = read(make(tmp_path / "r", claims[:1]))
    assert run.claims == tuple(claims[:1])
    (model,) = run.models
    assert model.about["layers"] == 4
    assert len(model.evidence["binding-published-60"].rows) == 40


def test_tables_are_tidy(tmp_path: Path) -> None:
    """A row per claim and model, and a row per claim, model and unit."""
    claims = [judged(), judged(model="other", sample=(1.0, 2.0))]
    folder = make(tmp_path / "r", claims)
    table = pd.read_csv(folder / "claims.csv")
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
    folder = make(tmp_path / "r", [judged()])
    for path in (folder / EVIDENCE).glob("*binding*"):
        path.unlink()
    with pytest.raises(ReportError, match="lacks 3 of its 22 files of evidence"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "has schema None"),
        ('{"schema": 2}', "has no claims"),
        ('{"schema": 99}', "has schema 99; this version reads 1 to 2"),
    ],
)
def test_a_file_of_another_kind_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / CLAIMS).write_text(text)
    with pytest.raises(ReportError, match=said):
        read(tmp_path)


def test_a_claim_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", [judged()])
    content = json.loads((folder / CLAIMS).read_text())
    content["claims"][0]["mood"] = "fine"
    (folder / CLAIMS).write_text(json.dumps(content))
    with pytest.raises(ReportError, match="mood"):
        read(folder)


def test_a_verdict_carries_the_numbers_behind_it() -> None:
    """One per unit, what they are held against, and under several draws their mean over draws."""
    assert effect([1.0, 2.0, 3.0, 4.0, 5.0], margin=0.1, above=0.5).sample == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert effect([1.0, 2.0], margin=0.1, above=0.5).against == 0.5
    assert no_effect([0.25] * 5, margin=0.1).sample == (0.25,) * 5
    nested = ordering([3.0] * 5, [[1.0] * 5, [2.0] * 5], margin=0.1, unit="nested")
    assert nested.sample == (1.5,) * 5
    assert overlap({1}, {1}, universe=100, selections=[{1}, {2}]).sample == (1.0, 0.0)
