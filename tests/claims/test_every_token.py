"""`--every-token` fills the figure of section 3 and leaves every verdict as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.report.folder import read
from tests.claims.run_claims import assert_ok, run

TITLE = "Information flow over every token"


@pytest.mark.slow
def test_every_token_is_drawn_and_no_verdict_moves(tmp_path: Path) -> None:
    options = "--model", "planted:pointer", "-k", "object_direct and not five and not controlled", "--no-store"
    reports = {}
    for extra in ([], ["--every-token"]):
        folder = tmp_path / f"with{len(extra)}"
        assert_ok(run(*options, *extra, "--report", str(folder)))
        reports[bool(extra)] = folder
    plain, full = (json.loads((reports[is_full] / "claims.json").read_text())["claims"] for is_full in (False, True))
    for row, full_row in zip(plain, full, strict=True):
        assert [row[name] for name in ("id", "verdict", "n")] == [full_row[name] for name in ("id", "verdict", "n")]
        prompt = (
            1 / row["n"]
        )  # other batches round otherwise, and among objects that nobody promotes that may decide one
        for name in ("measured", "low", "high"):
            assert row[name] == pytest.approx(full_row[name], abs=prompt)
    assert "--every-token" in full[0]["command"]
    assert [TITLE in (reports[is_full] / "index.html").read_text() for is_full in (False, True)] == [False, True]
    for is_full, folder in reports.items():
        for evidence in read(folder).models[0].evidence.values():
            if evidence.experiment == "tracing":
                tokens = evidence.rows["token"]
                assert (tokens.nunique() == evidence.settings["length"]) == is_full
