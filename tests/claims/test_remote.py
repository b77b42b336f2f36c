"""Claims on a server give the verdicts that they give here. The server is this machine, reached as one is: every trace
is serialised, unpacked without this project, and run by nnsight."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rebinding.planted import build
from tests.claims.run_claims import run, save_model

PRINTED = 1e-2
"""Three digits are printed: two numbers next to each other may differ by one in the third."""
ROUNDING = 1e-4
"""The stream of a plant carries a constant of 100, of which float32 keeps 1e-5; some ten roundings of it add up."""
SAMPLES = 12
"""Too few for most verdicts; the numbers behind them are compared as well."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plant = build("pointer")
    return save_model(plant.model, plant.tokenizer, tmp_path_factory.mktemp("served"))


def lines(process: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The verdict table: what is said of each claim, as printed."""
    matches = re.findall(r"^  ([a-z]+\.\S+)\s+(\S.*)$", process.stdout, flags=re.MULTILINE)
    return {claim: re.split(r"\s{2,}", rest.strip()) for claim, rest in matches}


def numbers(cells: list[str]) -> list[float]:
    """All that is printed between a claim's name and its verdict."""
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", " ".join(cells[:-1]))]


def run_both(folder: Path, selection: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The same claims judged on the server and here."""
    common = ["--samples", str(SAMPLES), "--no-store", "-k", selection, "-vv"]  # every row, also of many
    served = ["-p", "tests.claims.local_server", "--remote", "--model", "someone/pointer"]
    return lines(run(*served, *common, SERVED=str(folder))), lines(run(*common, "--model", str(folder)))


@pytest.mark.slow
def test_a_map_from_afar(folder: Path) -> None:
    remote, local = run_both(folder, "boxes_emerge_after_swap and not five and not controlled")
    assert remote == local
    assert list(local) == ["tracing.boxes_emerge_after_swap"]


@pytest.mark.slow
def test_discovery_roles_and_binding_from_afar(folder: Path) -> None:
    """Path patching of every head, attention interchange, shifted queries and keys, ablation."""
    remote, local = run_both(folder, "roles or binding or chain or full_model")
    assert remote.keys() == local.keys()
    assert len(local) > 40
    for claim, cells in local.items():
        remote_numbers, local_numbers = (numbers(row) for row in (remote[claim], cells))
        assert local_numbers == pytest.approx(remote_numbers, rel=PRINTED, abs=ROUNDING), claim
    assert {claim: cells[-1] for claim, cells in remote.items()} == {claim: cells[-1] for claim, cells in local.items()}
