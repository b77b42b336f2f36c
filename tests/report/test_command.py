"""`rebinding report DIR`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rebinding.cli.commands import main
from tests.report.folders import make, make_row


def test_the_page_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "r", [make_row()])
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    assert "planted:pointer@llama" in (folder / "index.html").read_text("utf-8")


def test_the_page_compares_with_an_earlier_report(tmp_path: Path) -> None:
    """What has changed, and the row as it was before; without the option nothing."""
    claims = [make_row(), make_row("roles.b_raises_pointer")]
    earlier = make(tmp_path / "earlier", claims, bare=True)
    changed = make_row(verdict="NOT REPLICATED", measured=0.125, low=0.1, high=0.15)
    folder = make(tmp_path / "now", [changed, claims[1]], bare=True)
    assert main(["report", str(folder), "--compare", str(earlier)]) == 0
    text = (folder / "index.html").read_text("utf-8")
    (section,) = re.findall(r'<section class="part" id="comparison".*?</section>', text, flags=re.DOTALL)
    words = " ".join(re.sub(r"<[^>]*>", " ", section).split())
    assert "2 rows in both reports: 1 with another verdict" in words
    assert "✓ REPLICATED 1 [0.9, 1.1] ✗ NOT REPLICATED 0.125 [0.1, 0.15]" in words
    assert "roles.b_raises_pointer" not in words
    assert main(["report", str(folder)]) == 0
    assert 'id="comparison"' not in (folder / "index.html").read_text("utf-8")


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_claims_is_refused(exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    if exists:
        folder.mkdir()
    assert main(["report", str(folder)]) == 2
    message = capsys.readouterr().err
    assert f"{folder} holds no claims.json" in message
    assert f"pytest claims --report {folder}" in message
