"""Claims on a server give the verdicts that they give here. The server is this machine, reached as one is: every trace
is serialised, unpacked without this project, and run by nnsight."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rebinding.planted import build
from tests.claims.runs import folder_of, run

PRINTED = 1e-2
"""Three digits are printed: two numbers next to each other may differ by one in the third."""
ROUNDING = 1e-4
"""The stream of a plant carries a constant of 100, of which float32 keeps 1e-5; some ten roundings of it add up."""
SAMPLES = 12
"""Too few for most verdicts; the numbers behind them are compared as well."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plant = build("pointer")
    return folder_of(plant.model, plant.tokenizer, tmp_path_factory.mktemp("served"))


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The verdict table: what is said of each claim, as printed."""
    found = re.findall(r"^  ([a-z]+\.\S+)\s+(\S.*)$", done.stdout, flags=re.MULTILINE)
    return {claim: re.split(r"\s{2,}", rest.strip()) for claim, rest in found}


def numbers(cells: list[str]) -> list[float]:
    """All that is printed between a claim's name and its verdict."""
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?", " ".join(cells[:-1]))]


def both(folder: Path, chosen: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The same claims judged on the server and here."""
    common = ["--samples", str(SAMPLES), "--no-store", "-k", chosen, "-vv"]  # every row, also of many
    served = ["-p", "tests.claims.served_here", "--remote", "--model", "someone/pointer"]
    return lines(run(*served, *common, SERVED=str(folder))), lines(run(*common, "--model", str(folder)))


@pytest.mark.slow
def test_a_map_from_afar(folder: Path) -> None:
    away, here = both(folder, "boxes_emerge_after_swap and not five and not controlled")
    assert away == here
    assert list(here) == ["tracing.boxes_emerge_after_swap"]


@pytest.mark.slow
def test_discovery_roles_and_binding_from_afar(folder: Path) -> None:
    """Path patching of every head, attention interchange, shifted queries and keys, ablation."""
    away, here = both(folder, "roles or binding or chain or full_model")
    assert away.keys() == here.keys()
    assert len(here) > 40
    for claim, cells in here.items():
        theirs, ours = (numbers(one) for one in (away[claim], cells))
        assert ours == pytest.approx(theirs, rel=PRINTED, abs=ROUNDING), claim
    assert {claim: cells[-1] for claim, cells in away.items()} == {claim: cells[-1] for claim, cells in here.items()}
