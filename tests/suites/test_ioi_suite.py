"""The example suite on two planted models: the paper's circuit, and a rival that answers in another way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.suites.ioi_plant import GAINS, save
from tests.suites.test_door import ROOT, run

SUITE = ROOT / "docs" / "tutorials" / "ioi-suite"
A_RECEIVER = 1 / (1 + 2 * 2.718281828**-4)
"""The attention of a name mover on the receiver, where each mention of the giver is four nats below."""
LEAD = sum(GAINS) * (2 * A_RECEIVER - 1)
WITHOUT = sum(GAINS) * (1 / 3 - 2 / 3)
"""The lead where nothing is inhibited: of three mentions two are the giver's."""
ROUNDING = 0.05
"""A sink of fifteen nats, and LayerNorm, which divides by what all features together weigh and not by the constant."""
TRUTH = {
    "circuit": {"name_movers": ("REPLICATED", LEAD), "s_inhibition": ("REPLICATED", LEAD - WITHOUT),
                "circuit": ("REPLICATED", LEAD / 2)},
    "rival": {"name_movers": ("NOT REPLICATED", 0.0), "s_inhibition": ("NOT REPLICATED", 0.0),
              "circuit": ("REPLICATED", (WITHOUT + 8) / 2)},
}  # fmt: skip


def test_the_suite_is_short() -> None:
    lines = [line for path in SUITE.glob("*.py") for line in path.read_text("utf-8").splitlines()]
    assert len(lines) < 150


def test_verdicts_are_those_of_the_mechanisms(tmp_path: Path) -> None:
    """Both procedures of each claim, and the published number of each as it follows from the weights."""
    shutil.copytree(SUITE, tmp_path / "suite", ignore=shutil.ignore_patterns("__pycache__"))
    for name in TRUTH:
        save(tmp_path / name, rival=name == "rival")
    models = [word for name in TRUTH for word in ("--model", name)]
    done = run(tmp_path, "suite", *models, "--report", "report", "--no-store")
    assert done.returncode == 0, done.stdout
    rows = {
        (row["model"], row["id"]): row for row in json.loads((tmp_path / "report/claims.json").read_text())["claims"]
    }
    assert len(rows) == 12
    for model, claims in TRUTH.items():
        for claim, (verdict, number) in claims.items():
            own, controlled = (rows[model, f"ioi.{claim}{end}"] for end in ("", ".controlled"))
            assert (own["verdict"], controlled["verdict"]) == (verdict, verdict), own["reason"]
            assert own["measured"] == pytest.approx(number, abs=ROUNDING)
