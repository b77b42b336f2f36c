"""Commands and requests on every family: certificates, and evidence of each kind."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rebinding.cli.commands import main
from rebinding.evidence import Evidence
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery import Anatomy
from tests.accelerator.setup import numbers, requests
from tests.claims.run_claims import run, verdicts
from tests.everyday import sampled
from tests.families.models import UNUSUAL, Family, RandomModel
from tests.models.folders import ROWS, save


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


@pytest.mark.parametrize("family", sampled(UNUSUAL, "gpt2"))
def test_random_model_is_invalid(family: Family, tmp_path: Path) -> None:
    model = save_family(RandomModel(family), tmp_path / family)
    assert judge_headline(model, tmp_path) == {"INVALID (above_chance)"}


@pytest.mark.slow
@pytest.mark.parametrize("family", UNUSUAL)
def test_adapted_model_is_invalid(family: Family, tmp_path: Path) -> None:
    """Two steps of training move an adapter, which is loaded with its base, checked and judged."""
    model, adapter = save_family(RandomModel(family), tmp_path / family), tmp_path / "adapter"
    options = ["--steps", "2", "--prompts", "8", "--rank", "2", "--license", "none"]
    assert main(["train", str(model), "--out", str(adapter), *options]) == 0
    assert judge_headline(adapter, tmp_path) == {"INVALID (above_chance)"}


ROLES = {
    "A": "readout",
    "B": "readout",
    "C": "question_box",
    "D": "swap_partner",
    "E": "context_asked_object",
}
VISIBLE = 1e-3
"""A change of a logit, a hundred times what rounding does to these models (`tests/families/engines.py`)."""


def draw_circuit(anatomy: Anatomy) -> Circuit:
    """Two heads a group, from all layers that have heads; those at the readout from the upper half."""
    upper = anatomy.heads[len(anatomy.heads) // 2 :]
    pools = {group: upper if role == "readout" else anatomy.heads for group, role in ROLES.items()}
    return Circuit(
        tuple(
            CircuitHead(group, *head, ROLES[group])
            for group, pool in pools.items()
            for head in random.Random(group).sample(pool, 2)
        )
    )


def largest_change(evidence: Evidence) -> float:
    """The largest change of a logit by an edit."""
    before, after = ("before", "after") if "before" in evidence.rows else ("logit_orig", "logit_patch")
    return float((evidence.rows[before] - evidence.rows[after]).abs().max())


@pytest.mark.parametrize("family", sampled(UNUSUAL, "qwen3_next"))
def test_every_experiment_runs(family: Family, tmp_path: Path) -> None:
    """Its numbers are finite, and edits at the readout change logits; other paths of a random model may be empty."""
    bench = Workbench(load(str(save_family(RandomModel(family), tmp_path / family))))
    outcomes = {kind: bench.get(request) for kind, request in requests(bench, draw_circuit(bench.loaded_model.anatomy))}
    columns = {kind: numbers(evidence).values() for kind, evidence in outcomes.items()}
    assert {kind: all(np.isfinite(values).all() for values in columns[kind]) for kind in columns} == dict.fromkeys(
        columns, True
    )
    change = {kind: largest_change(outcomes[kind]) for kind in ("paths A", "roles pointer", "roles content_control")}
    assert min(change.values()) > VISIBLE, change


WHOLE = 512
"""Tokens of windows, chunks and positions; a prompt has about eighty."""


def save_family(model: RandomModel, folder: Path) -> Path:
    """The model in a folder, with the tokenizer of the planted models."""
    sizes = dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), ROWS)
    lengths = ("max_position_embeddings", "n_positions", "sliding_window", "attention_chunk_size")
    return save(model.build(**sizes, **dict.fromkeys(lengths, WHOLE)), folder)
