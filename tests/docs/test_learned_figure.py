"""The script that draws the signatures of the learned models: its dots, and the cells of its table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import QK, K, Q
from rebinding.experiments.binding.summary import summary
from rebinding.report.folder import ReportedModel, ReportedRun
from tests.experiments.setup import random_model
from tests.report.folders import make_row

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "learned.py"
SPEC = importlib.util.spec_from_file_location("learned_figure", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
learned = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(learned)

SMOLLM2, GEMMA = "learned:smollm2?seed=0&order=all", "learned:gemma3-270m?seed=1&order=all"


def make_model(name: str, evidence: dict[str, Evidence]) -> Any:
    return SimpleNamespace(name=name, find_largest_evidence=lambda _, variation, cut: evidence.get(variation))


def test_the_figure_has_the_mean_of_each_shift_by_procedure() -> None:
    bench = random_model("llama")
    published = bench.binding("published", (Q, K, QK), n=9)
    controlled = bench.binding("counterbalanced", (Q, K, QK), n=9)
    models = [
        make_model(SMOLLM2, {"published": published, "controlled": controlled}),
        make_model(GEMMA, {"published": controlled}),
    ]
    left, right = learned.signature_figure(models).axes
    means = {name: summary(evidence)["dR"].tolist() for name, evidence in (("p", published), ("c", controlled))}
    assert [container.lines[0].get_xdata()[0] for container in left.containers] == pytest.approx(
        means["p"] + means["c"]
    )
    assert [container.lines[0].get_xdata()[0] for container in right.containers] == pytest.approx(means["c"])
    assert [text.get_text() for text in right.texts] == ["no group B"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["smollm2-all-0", "gemma3-270m-all-1"]


def test_the_table_has_a_verdict_and_an_estimate_per_model() -> None:
    rows = (
        make_row("binding.qk_cancels", SMOLLM2, headline=3, verdict="NOT REPLICATED", measured=-0.2181),
        make_row("binding.qk_cancels", GEMMA, headline=3, verdict="INVALID", gate="group_present", measured=None),
        make_row("binding.key_dominance", GEMMA, headline=4, measured=1.5),
        make_row("binding.q_redirects", GEMMA),
        make_row("binding.families_differ", "the run as a whole", headline=5, verdict="INCONCLUSIVE", reason="why"),
    )
    names = (SMOLLM2, GEMMA, "the run as a whole")
    models = tuple(ReportedModel(number, {"name": name}, Path()) for number, name in enumerate(names))
    assert [model.name for model in learned.learned(ReportedRun({}, {}, models, rows))] == [SMOLLM2, GEMMA]
    assert list(learned.table(ReportedRun({}, {}, models, rows))) == [
        "| row | `smollm2-all-0` | `gemma3-270m-all-1` |",
        "|---|---|---|",
        "| `binding.qk_cancels` | no -0.22 | invalid (group_present) |",
        "| `binding.key_dominance` |  | yes 1.5 |",
        "`binding.families_differ`: INCONCLUSIVE; why",
    ]
