"""Claims judged with workers: everything is asked for beforehand, beside each other, and the table is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.claims.runs import run

MODELS = ("--model", "planted:pointer@llama", "--model", "planted:lexical@llama")
FEW = ("--samples", "12", "-k", "D_q_C or b_moves_pointer or (q_strongest and not controlled)")
WORKERS = ("-p", "tests.engines.plugged", "--engine", "ray")


def table(output: str) -> list[str]:
    """Every claim with its numbers, and what is said of the model."""
    _, there, told = output.partition("= verdicts =")
    assert there, output[-3000:]
    return [line for line in told.splitlines() if line.startswith("  ")]


@pytest.mark.slow
def test_the_table_is_that_of_this_process(tmp_path: Path) -> None:
    own = run(*MODELS, *FEW, "--store", str(tmp_path / "own"))
    theirs = run(*MODELS, *FEW, *WORKERS, "--store", str(tmp_path / "theirs"))
    assert len(table(own.stdout)) > 6
    assert table(own.stdout) == table(theirs.stdout)
    (told,) = re.findall(r"tasks (\d+), different (\d+), at the same time (\d+)", theirs.stdout)
    tasks, different, most = map(int, told)
    assert tasks == different > 10
    assert most == 2
    again = run(*MODELS, *FEW, *WORKERS, "--store", str(tmp_path / "own"))
    assert table(again.stdout) == table(own.stdout)
    assert "tasks 2, different 2" in again.stdout  # what the two models are; all evidence is there


@pytest.mark.parametrize("given", [("-n", "2"), ("-n", "auto")])
def test_with_processes_of_pytest_it_is_refused(given: tuple[str, ...]) -> None:
    done = run(*MODELS, *FEW, *WORKERS, *given)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--numprocesses and --engine ray" in done.stderr
