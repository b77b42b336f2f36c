"""`pytest claims --cost`: which options it takes, what it prints, and that two processes count as one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebinding.cost.hollow_model import STAND_IN
from rebinding.models import ALIASES
from rebinding.study.gates import FEWEST_ABLE
from tests.claims.run_claims import assert_ok, run
from tests.claims.test_options import settings
from tests.models.folders import save_tiny

ROWS = "recovers_accuracy or not_a_floor or route_through_swap_labels"
NUMBERS = {"replays": {2}, "ability": {FEWEST_ABLE}, "ablation, vs groups, balanced": {2}}
"""Prompts of three requests under `--samples 2`: the gate on ability asks for more than it is judged on."""


def test_the_papers_four_models_need_no_gpu() -> None:
    loaded = settings(cost=True)
    assert loaded.purpose == "cost"
    assert [model.name for model in loaded.models] == list(ALIASES)


def test_a_shape_stands_for_its_model() -> None:
    (loaded,) = settings(cost=True, model=["shape:gemma2-9b"]).models
    assert (loaded.name, loaded.alias) == ("gemma2-9b", "gemma2-9b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "nan"}, "--gpu nan: give a size in GB"),
        ({"gpu": "inf"}, "--gpu inf: give a size in GB"),
        ({"gpus": 0}, "--gpus 0: give 1 or more"),
        ({"tflops": float("nan")}, "--tflops nan: give a number above 0"),
        ({"bandwidth": 0.0}, "--bandwidth 0.0: give a number above 0"),
        ({"tokens": 0}, "--tokens 0: give 1 or more"),
        ({"simulate": ["paper"]}, "--simulate and --cost"),
        ({"store": "there"}, "--store there and --cost: no evidence is saved"),
        ({"remote": True}, "--remote and --cost: no model runs"),
        ({"strict_verdicts": True}, "--strict-verdicts and --cost: nothing is judged"),
        ({"engine": "ray"}, "--engine ray and --cost"),
        ({"device": "cpu"}, "--device cpu and --cost.*--gpu"),
        ({"circuit": "discovered-all-positions"}, "--circuit discovered-all-positions and --cost"),
        ({"model": ["planted:pointer"]}, "planted:pointer@llama is planted"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        settings(cost=True, **options)


@pytest.mark.parametrize(
    "arguments", [{"gpu": "40GB"}, {"gpus": 2}, {"tflops": 100.0}, {"bandwidth": 1.0}, {"tokens": 90}]
)
def test_dry_run_options_are_refused_without_dry_run(arguments: dict[str, Any]) -> None:
    with pytest.raises(pytest.UsageError, match="give --cost too"):
        settings(**arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model without its weights."""
    model_folder = save_tiny(tmp_path_factory.mktemp("folder") / "tiny")
    (model_folder / "model.safetensors").unlink()
    return model_folder


def run_cost(folder: Path, report: Path, *options: str) -> tuple[str, dict[str, Any]]:
    process = run("--cost", "--model", str(folder), "--samples", "2", "-k", ROWS, "--report", str(report), *options)
    assert_ok(process)
    return process.stdout, json.loads((report / "cost.json").read_text())


@pytest.mark.slow
def test_two_processes_count_as_one_does(folder: Path, tmp_path: Path) -> None:
    """Each request once, whoever comes to it, in the order of the claims."""
    output, cost = run_cost(folder, tmp_path / "one")
    (model,) = cost["models"]
    assert f"this is with that of {STAND_IN}" in output
    assert "3 costed" in output
    assert "not costed: crossings (beyond.route_through_swap_labels)" in output
    assert "fits into one GPU of 80 GB" in output
    assert [row["id"] for row in model["claims"]][-1] == "beyond.route_through_swap_labels"
    numbers = {name: {line["n"] for line in model["lines"].values() if line["name"] == name} for name in NUMBERS}
    assert numbers == NUMBERS
    assert model["flop"] == sum(line["flop"] for line in model["lines"].values())
    assert not (tmp_path / "one" / "claims.json").exists()
    _, rerun = run_cost(folder, tmp_path / "two", "-n", "2", "--dist", "load")
    assert rerun == cost
