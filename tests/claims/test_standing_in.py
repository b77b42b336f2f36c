"""The way of the paper's models, end to end, with folders that stand in for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claims.catalogue import claims
from rebinding.models import ALIASES
from rebinding.paper.circuit import Circuit, Owner, save
from rebinding.planted import build
from tests.claims.runs import folder_of, ok, run, save_random, verdicts

BOTH = ("", ".controlled")
"""Endings of a sentence's rows."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plant for as many boxes as are asked about, and the shape of one for three with random weights."""
    there, plant = tmp_path_factory.mktemp("folders"), build("pointer", "gemma2", boxes=5)
    return {
        "planted": folder_of(plant.model, plant.tokenizer, there / "planted"),
        "random": save_random(there / "random"),
    }


def test_random_weights_are_invalid_and_fail_the_run(folders: dict[str, Path], tmp_path: Path) -> None:
    """Said once to a person; the files for machines have every row."""
    junit, report = tmp_path / "found.xml", tmp_path / "report"
    stand_in = f"gemma2-9b={folders['random']}"
    given = ("--device", "cpu", "--samples", "20", "--no-store", "--junitxml", str(junit), "--report", str(report))
    done = run("--model", stand_in, *given)
    ok(done, pytest.ExitCode.TESTS_FAILED)
    count = len(claims())
    assert f"\n  {count} claims: INVALID (above_chance)\n" in done.stdout
    assert done.stdout.count("nothing can be judged on this model") == 1
    assert f"\n{count} failed, " in done.stdout
    assert done.stdout.count("INVALID") == 1
    assert not [word for word in ("FAILURES", "FAILED", "Loading", "transformers") if word in done.stdout]
    assert done.stderr == ""
    assert len(json.loads((report / "claims.json").read_text())["claims"]) == count
    assert (report / "index.html").read_text().count("nothing can be judged on this model") == 1
    found = verdicts(junit)
    assert set(found) == {claim.id for claim in claims()}
    assert set(found.values()) == {"INVALID (above_chance)"}
    assert "has another shape than gemma2-9b" in done.stdout


@pytest.mark.slow
def test_a_planted_folder_is_judged_against_the_papers_numbers(folders: dict[str, Path], tmp_path: Path) -> None:
    junit = tmp_path / "found.xml"
    wanted = "binding.q_redirects or table.q.dR or chain.A_logits or object_keys_read_out or boxes_emerge"
    stand_in = f"gemma2-9b={folders['planted']}"
    given = ("--device", "cpu", "--samples", "24", "--no-store", "--junitxml", str(junit), "-k", wanted)
    done = run("--model", stand_in, *given)
    ok(done, pytest.ExitCode.TESTS_FAILED)
    assert verdicts(junit) == {
        "binding.table.q.dR": "NOT REPLICATED",  # 13 nats where the paper has 2.66
        **{f"binding.object_keys_read_out{ending}": "NOT REPLICATED" for ending in BOTH},
        **{
            f"{row}{ending}": "REPLICATED"
            for ending in BOTH
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
    given = ("--device", "cpu", "--samples", "24", "--no-store", "-k", "object_keys_read_out or table.q.dR")
    done = run("--model", str(folders["planted"]), *given)
    ok(done)
    assert "3 reported" in done.stdout, "one sentence is judged twice"
    assert "NOT APPLICABLE" in done.stdout, "there are no printed numbers for it"


@pytest.mark.slow
def test_a_file_of_another_models_circuit_stops_before_anything_runs(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "circuit.json"
    save(Circuit(build("pointer").circuit), Owner("another", "0123", 7, 8), file)
    done = run("--model", str(folders["planted"]), "--device", "cpu", "--no-store", "--circuit", str(file))
    ok(done, pytest.ExitCode.TESTS_FAILED)
    assert f"{len(claims())} failed" in done.stdout
    assert done.stdout.count("belongs to another") == 1, "said once"


def test_without_a_gpu_the_papers_models_are_listed_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    listed = run("-m", "gpu", "--collect-only")
    ok(listed)
    ids = [claim.id for claim in claims()]
    for alias in ALIASES:
        assert all(f"[{alias}-{claim}]" in listed.stdout for claim in ids), alias
    refused = run("-m", "gpu")
    ok(refused, pytest.ExitCode.USAGE_ERROR)
    assert "need a CUDA device" in refused.stderr
    skipped = run("-m", "gpu", "--skip-unavailable")
    ok(skipped)
    assert f"{len(ALIASES) * len(ids)} skipped" in skipped.stdout
