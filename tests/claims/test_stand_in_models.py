"""The paper's models end to end, with folders that stand in for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claims.catalogue import claims
from rebinding.models import ALIASES
from rebinding.paper.circuit import Circuit, Owner, save
from rebinding.planted import build
from tests.claims.run_claims import assert_ok, run, save_model, save_random, verdicts

SUFFIXES = ("", ".controlled")
"""Endings of a sentence's rows."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plant for as many boxes as are asked about, and the shape of one for three with random weights."""
    folder, plant = tmp_path_factory.mktemp("folders"), build("pointer", "gemma2", boxes=5)
    return {
        "planted": save_model(plant.model, plant.tokenizer, folder / "planted"),
        "random": save_random(folder / "random"),
    }


def test_random_weights_are_invalid_and_fail_the_run(folders: dict[str, Path], tmp_path: Path) -> None:
    """Said once to a person; the files for machines have every row."""
    junit, report = tmp_path / "found.xml", tmp_path / "report"
    stand_in = f"gemma2-9b={folders['random']}"
    arguments = ("--device", "cpu", "--samples", "20", "--no-store", "--junitxml", str(junit), "--report", str(report))
    result = run("--model", stand_in, *arguments)
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    count = len(claims())
    assert f"\n  {count} claims: INVALID (above_chance)\n" in result.stdout
    assert result.stdout.count("nothing can be judged on this model") == 1
    assert f"\n{count} failed, " in result.stdout
    assert result.stdout.count("INVALID") == 1
    assert not [word for word in ("FAILURES", "FAILED", "Loading", "transformers") if word in result.stdout]
    assert result.stderr == ""
    assert len(json.loads((report / "claims.json").read_text())["claims"]) == count
    assert (report / "index.html").read_text().count("nothing can be judged on this model") == 1
    outcomes = verdicts(junit)
    assert set(outcomes) == {claim.id for claim in claims()}
    assert set(outcomes.values()) == {"INVALID (above_chance)"}
    assert "has another shape than gemma2-9b" in result.stdout


@pytest.mark.slow
def test_a_planted_folder_is_judged_against_the_papers_numbers(folders: dict[str, Path], tmp_path: Path) -> None:
    junit = tmp_path / "found.xml"
    selection = "binding.q_redirects or table.q.dR or chain.A_logits or a_lowers_content or boxes_emerge"
    stand_in = f"gemma2-9b={folders['planted']}"
    arguments = ("--device", "cpu", "--samples", "24", "--no-store", "--junitxml", str(junit), "-k", selection)
    result = run("--model", stand_in, *arguments)
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    assert verdicts(junit) == {
        "binding.table.q.dR": "NOT REPLICATED",  # 6.6 nats where the paper has 2.66; too close to its margin to assert
        **{f"roles.a_lowers_content{ending}": "NOT REPLICATED" for ending in SUFFIXES},  # asserted as published
        **{
            f"{row}{ending}": "REPLICATED"
            for ending in SUFFIXES
            for row in (
                "binding.q_redirects",
                "circuit.chain.A_logits",
                "tracing.boxes_emerge_after_swap",
                "tracing.five_boxes.boxes_emerge_after_swap",
            )
        },
    }


@pytest.mark.slow
def test_a_folder_of_its_own_is_reported_and_not_asserted(folders: dict[str, Path]) -> None:
    arguments = ("--device", "cpu", "--samples", "24", "--no-store", "-k", "object_keys_read_out or table.q.dR")
    result = run("--model", str(folders["planted"]), *arguments)
    assert_ok(result)
    assert "3 reported" in result.stdout, "one sentence is judged twice"
    assert "NOT APPLICABLE" in result.stdout, "there are no printed numbers for it"


@pytest.mark.slow
def test_a_file_of_another_models_circuit_stops_before_anything_runs(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "circuit.json"
    save(Circuit(build("pointer").circuit), Owner("another", "0123", 7, 8), file)
    result = run("--model", str(folders["planted"]), "--device", "cpu", "--no-store", "--circuit", str(file))
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    assert f"{len(claims())} failed" in result.stdout
    assert result.stdout.count("belongs to another") == 1, "said once"


def test_paper_models_are_listed_and_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    listing = run("-m", "gpu", "--collect-only")
    assert_ok(listing)
    ids = [claim.id for claim in claims()]
    for alias in ALIASES:
        assert all(f"[{alias}-{claim}]" in listing.stdout for claim in ids), alias
    refused = run("-m", "gpu")
    assert_ok(refused, pytest.ExitCode.USAGE_ERROR)
    assert "need a CUDA device" in refused.stderr
    skipped = run("-m", "gpu", "--skip-unavailable")
    assert_ok(skipped)
    assert f"{len(ALIASES) * len(ids)} skipped" in skipped.stdout
