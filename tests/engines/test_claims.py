"""Claims judged with workers: evidence is computed before, in parallel, and the table is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.claims.runs import run

MODELS = ("--model", "planted:pointer@llama", "--model", "planted:lexical@llama")
FEW = ("--samples", "12", "-k", "D_q_C or b_moves_pointer or (q_strongest and not controlled)")
WORKERS = ("-p", "tests.engines.local_plugin", "--engine", "ray")


def table(output: str) -> list[str]:
    """The lines of the claims with their numbers, and those about the model."""
    _, heading, summary = output.partition("= verdicts =")
    assert heading, output[-3000:]
    return [line for line in summary.splitlines() if line.startswith("  ")]


@pytest.mark.slow
def test_the_table_is_that_of_this_process(tmp_path: Path) -> None:
    own = run(*MODELS, *FEW, "--store", str(tmp_path / "own"))
    with_workers = run(*MODELS, *FEW, *WORKERS, "--store", str(tmp_path / "theirs"))
    assert len(table(own.stdout)) > 6
    assert table(own.stdout) == table(with_workers.stdout)
    (summary,) = re.findall(r"tasks (\d+), different (\d+), at the same time (\d+)", with_workers.stdout)
    tasks, different, most = map(int, summary)
    assert tasks == different > 10
    assert most == 2
    rerun = run(*MODELS, *FEW, *WORKERS, "--store", str(tmp_path / "own"))
    assert table(rerun.stdout) == table(own.stdout)
    assert "tasks 2, different 2" in rerun.stdout  # what the two models are; all evidence is there


@pytest.mark.parametrize("arguments", [("-n", "2"), ("-n", "auto")])
def test_with_processes_of_pytest_it_is_refused(arguments: tuple[str, ...]) -> None:
    done = run(*MODELS, *FEW, *WORKERS, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--numprocesses and --engine ray" in done.stderr
