"""`--every-token` fills the figure of section 3 and leaves every verdict as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.report.folder import read
from tests.claims.runs import ok, run

TITLE = "Information flow over every token"


@pytest.mark.slow
def test_every_token_is_drawn_and_no_verdict_moves(tmp_path: Path) -> None:
    told = "--model", "planted:pointer", "-k", "object_direct and not five and not controlled", "--no-store"
    found = {}
    for more in ([], ["--every-token"]):
        folder = tmp_path / f"with{len(more)}"
        ok(run(*told, *more, "--report", str(folder)))
        found[bool(more)] = folder
    plain, whole = (json.loads((found[every] / "claims.json").read_text())["claims"] for every in (False, True))
    for one, other in zip(plain, whole, strict=True):
        assert [one[name] for name in ("id", "verdict", "n")] == [other[name] for name in ("id", "verdict", "n")]
        prompt = (
            1 / one["n"]
        )  # other batches round otherwise, and among objects that nobody promotes that may decide one
        for name in ("measured", "low", "high"):
            assert one[name] == pytest.approx(other[name], abs=prompt)
    assert "--every-token" in whole[0]["command"]
    assert [TITLE in (found[every] / "index.html").read_text() for every in (False, True)] == [False, True]
    for every, folder in found.items():
        for evidence in read(folder).models[0].evidence.values():
            if evidence.experiment == "tracing":
                tokens = evidence.rows["token"]
                assert (tokens.nunique() == evidence.settings["length"]) == every
