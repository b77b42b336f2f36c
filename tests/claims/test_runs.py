"""Whole runs of the claims, in processes of their own: folders that stand in for the paper's models, a server, changed
conventions, every token.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from claims.catalogue import claims
from rebinding.paper.circuit import Circuit, Owner, save
from rebinding.planted import build
from rebinding.report.folder import read
from tests.claims.run_claims import assert_ok, run, save_model, save_random, verdicts

TITLE = "Information flow over every token"
SUFFIXES = ("", ".controlled")
"""Endings of a sentence's rows."""
HERE = ("--device", "cpu", "--no-store")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant for as many boxes as are asked about."""
    plant = build("pointer", "gemma2", boxes=5)
    return save_model(plant.model, plant.tokenizer, tmp_path_factory.mktemp("planted"))


def test_random_weights_are_invalid_and_fail_the_run(tmp_path: Path) -> None:
    """Said once to a person; the files for machines have every row."""
    junit, report = tmp_path / "found.xml", tmp_path / "report"
    stand_in = f"gemma2-9b={save_random(tmp_path / 'random')}"
    result = run("--model", stand_in, *HERE, "--samples", "20", "--junitxml", str(junit), "--report", str(report))
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    count = len(claims())
    assert f"\n  {count} rows: INVALID (above_chance)\n" in result.stdout
    assert result.stdout.count("nothing can be judged on this model") == 1
    assert f"\n{count} failed, " in result.stdout
    assert result.stdout.count("INVALID") == 1
    assert not [word for word in ("FAILURES", "FAILED", "Loading", "transformers") if word in result.stdout]
    assert result.stderr == ""
    assert len(json.loads((report / "claims.json").read_text())["claims"]) == count
    assert (report / "index.html").read_text().count("nothing can be judged on this model") == 1
    assert verdicts(junit) == dict.fromkeys((claim.id for claim in claims()), "INVALID (above_chance)")
    assert "has another shape than gemma2-9b" in result.stdout


@pytest.mark.slow
def test_a_planted_folder_is_judged_against_the_papers_numbers(planted: Path, tmp_path: Path) -> None:
    junit = tmp_path / "found.xml"
    selection = "binding.q_redirects or table.q.dR or chain.A_logits or a_lowers_content or boxes_emerge"
    stand_in = f"gemma2-9b={planted}"
    result = run("--model", stand_in, *HERE, "--samples", "24", "--junitxml", str(junit), "-k", selection)
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    replicated = (
        "binding.q_redirects",
        "circuit.chain.A_logits",
    )
    emerge = ("tracing.boxes_emerge_after_swap", "tracing.five_boxes.boxes_emerge_after_swap")
    assert verdicts(junit) == {
        "binding.table.q.dR": "NOT REPLICATED",  # 6.6 nats where the paper has 2.66; too close to its margin to assert
        **{f"roles.a_lowers_content{ending}": "NOT REPLICATED" for ending in SUFFIXES},  # asserted as published
        **{f"{row}{ending}": "REPLICATED" for ending in SUFFIXES for row in replicated},
        # In published stories the plant has the box at the question box alone, and not at two tokens in between:
        # 72 prompts show that, and 24 leave it open. In controlled ones the partner's label has it too.
        **{f"{row}.controlled": "REPLICATED" for row in emerge},
        **dict.fromkeys(emerge, "INCONCLUSIVE"),
    }


@pytest.mark.slow
def test_a_folder_of_its_own_is_reported_and_not_asserted(planted: Path) -> None:
    result = run("--model", str(planted), *HERE, "--samples", "24", "-k", "object_keys_read_out or table.q.dR")
    assert_ok(result)
    assert "3 reported" in result.stdout, "one sentence is judged twice"
    assert "NOT APPLICABLE" in result.stdout, "there are no printed numbers for it"


@pytest.mark.slow
def test_a_file_of_another_models_circuit_stops_before_anything_runs(planted: Path, tmp_path: Path) -> None:
    file = tmp_path / "circuit.json"
    save(Circuit(build("pointer").circuit), Owner("another", "0123", 7, 8), file)
    result = run("--model", str(planted), *HERE, "--circuit", str(file))
    assert_ok(result, pytest.ExitCode.TESTS_FAILED)
    assert f"{len(claims())} failed" in result.stdout
    assert result.stdout.count("belongs to another") == 1, "said once"


@pytest.mark.slow
def test_several_sets_of_directions_are_crossed_with_prompts(tmp_path: Path) -> None:
    """A convention that somebody changes reaches every row that it concerns. The published rows take one set of
    directions; with two, their numbers are of sets and prompts, and every row is judged."""
    file = tmp_path / "mine.toml"
    file.write_text('like = "published"\n[binding]\nbatches = 2\n')
    run("--model", "planted:pointer", "--procedure", str(file), "--no-store", "--samples", "12",
        "-k", "table.q.dR or correct_only.similar or no_kv_leak or third_slot",
        "--report", str(tmp_path / "out"))  # fmt: skip
    rows: list[dict[str, Any]] = json.loads((tmp_path / "out" / "claims.json").read_text())["claims"]
    assert len(rows) == 4
    assert {row["verdict"] for row in rows} <= {"REPLICATED", "NOT REPLICATED", "INCONCLUSIVE"}
    assert all(row["n"] for row in rows)


@pytest.mark.slow
def test_every_token_is_drawn_and_no_verdict_moves(tmp_path: Path) -> None:
    """`--every-token` fills the figure of section 3 and leaves every verdict as it is."""
    options = "--model", "planted:pointer", "-k", "object_direct and not five and not controlled", "--no-store"
    folders = {False: tmp_path / "plain", True: tmp_path / "full"}
    for is_full, folder in folders.items():
        assert_ok(run(*options, *(["--every-token"] if is_full else []), "--report", str(folder)))
    plain, full = (json.loads((folder / "claims.json").read_text())["claims"] for folder in folders.values())
    for row, full_row in zip(plain, full, strict=True):
        assert [row[name] for name in ("id", "verdict", "n")] == [full_row[name] for name in ("id", "verdict", "n")]
        prompt = 1 / row["n"]  # other batches round otherwise; among objects that nobody promotes that may decide one
        for name in ("measured", "low", "high"):
            assert row[name] == pytest.approx(full_row[name], abs=prompt)
    assert "--every-token" in full[0]["command"]
    for is_full, folder in folders.items():
        assert (TITLE in (folder / "index.html").read_text()) == is_full
        for evidence in read(folder).models[0].evidence.values():
            if evidence.experiment == "tracing":
                tokens = evidence.rows["token"]
                assert (tokens.nunique() == evidence.settings["length"]) == is_full


# A server, which is this machine, reached as one is: every trace is serialised, unpacked without this project, and run
# by nnsight

PRINTED = 1e-2
"""Three digits are printed: two numbers next to each other may differ by one in the third."""
ROUNDING = 1e-4
"""The stream of a plant carries a constant of 100, of which float32 keeps 1e-5; some ten roundings of it add up."""
REMOTE_SAMPLES = 12
"""Too few for most verdicts; the numbers behind them are compared as well."""


def lines(process: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The verdict table: what is said of each claim, as printed."""
    matches = re.findall(r"^  ([a-z]+\.\S+)\s+(\S.*)$", process.stdout, flags=re.MULTILINE)
    return {claim: re.split(r"\s{2,}", rest.strip()) for claim, rest in matches}


def numbers(cells: list[str]) -> list[float]:
    """All that is printed between a claim's name and its verdict."""
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", " ".join(cells[:-1]))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "at_least"),
    [
        ("boxes_emerge_after_swap and not five and not controlled", 1),
        ("(roles or binding or chain or full_model) and not near_full", 41),
    ],
    ids=["a map", "discovery, roles and binding"],
)
def test_claims_on_a_server_have_the_verdicts_that_they_have_here(
    selection: str, at_least: int, tmp_path: Path
) -> None:
    """Tracing; path patching of every head, attention interchange, shifted queries and keys, ablation."""
    plant = build("pointer")
    folder = save_model(plant.model, plant.tokenizer, tmp_path / "served")
    common = ["--samples", str(REMOTE_SAMPLES), "--no-store", "-k", selection, "-vv"]  # every row, also of many
    served = ["-p", "tests.claims.local_server", "--remote", "--model", "someone/pointer"]
    remote = lines(run(*served, *common, SERVED=str(folder)))
    local = lines(run(*common, "--model", str(folder)))
    assert remote.keys() == local.keys()
    assert len(local) >= at_least
    for claim, cells in local.items():
        assert numbers(cells) == pytest.approx(numbers(remote[claim]), rel=PRINTED, abs=ROUNDING), claim
        assert remote[claim][-1] == cells[-1], claim
