"""From load to report: the headline claims on a random model of every family, as it is and adapted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.cli.commands import main
from tests.claims.run_claims import run, verdicts
from tests.everyday import sampled
from tests.families.folders import save_family
from tests.families.models import FAMILIES, Family, RandomModel


def judge_headline(model: Path, folder: Path) -> set[str]:
    """The verdicts of the headline rows; the report is written."""
    junit, report = folder / "junit.xml", folder / "report"
    result = run("-m", "headline", "--model", str(model), "--samples", "8", "--no-store",
                 "--junitxml", str(junit), "--report", str(report))  # fmt: skip
    assert "Traceback" not in result.stdout + result.stderr
    assert (report / "index.html").is_file()
    rows = verdicts(junit)
    assert len(rows) > 10
    return set(rows.values())


@pytest.mark.parametrize("family", sampled(FAMILIES, "gemma3n_text"))
def test_random_model_is_invalid(family: Family, tmp_path: Path) -> None:
    model = save_family(RandomModel(family), tmp_path / family)
    assert judge_headline(model, tmp_path) == {"INVALID (above_chance)"}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_adapted_model_is_invalid(family: Family, tmp_path: Path) -> None:
    """Two steps of training move an adapter, which is loaded with its base, checked and judged."""
    model, adapter = save_family(RandomModel(family), tmp_path / family), tmp_path / "adapter"
    options = ["--steps", "2", "--prompts", "8", "--rank", "2", "--license", "none"]
    assert main(["train", str(model), "--out", str(adapter), *options]) == 0
    assert judge_headline(adapter, tmp_path) == {"INVALID (above_chance)"}
