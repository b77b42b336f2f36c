"""`rebinding report DIR`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.cli.commands import main
from tests.report.folders import make, make_row


def test_the_page_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "r", [make_row()])
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    assert "planted:pointer@llama" in (folder / "index.html").read_text("utf-8")


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_claims_is_refused(exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    if exists:
        folder.mkdir()
    assert main(["report", str(folder)]) == 2
    message = capsys.readouterr().err
    assert f"{folder} holds no claims.json" in message
    assert f"pytest claims --report {folder}" in message
