"""Claims judged with workers: evidence is computed before, in parallel, and the table is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.claims.run_claims import run

MODELS = ("--model", "planted:pointer@llama", "--model", "planted:lexical@llama")
SELECTION = ("--samples", "12", "-k", "D_q_C or b_moves_pointer or (q_strongest and not controlled)")
WORKERS = ("-p", "tests.engines.local_plugin", "--engine", "ray")


def table(output: str) -> list[str]:
    """The lines of the claims with their numbers, and those about the model."""
    _, heading, summary = output.partition("= verdicts =")
    assert heading, output[-3000:]
    return [line for line in summary.splitlines() if line.startswith("  ")]


@pytest.mark.slow
def test_the_table_is_that_of_this_process(tmp_path: Path) -> None:
    local = run(*MODELS, *SELECTION, "--store", str(tmp_path / "own"))
    with_workers = run(*MODELS, *SELECTION, *WORKERS, "--store", str(tmp_path / "theirs"))
    assert len(table(local.stdout)) > 6
    assert table(local.stdout) == table(with_workers.stdout)
    (summary,) = re.findall(r"tasks (\d+), different (\d+), at the same time (\d+)", with_workers.stdout)
    tasks, different, maximum = map(int, summary)
    assert tasks == different > 10
    assert maximum == 2
    rerun = run(*MODELS, *SELECTION, *WORKERS, "--store", str(tmp_path / "own"))
    assert table(rerun.stdout) == table(local.stdout)
    assert "tasks 2, different 2" in rerun.stdout  # what the two models are; all evidence is there


@pytest.mark.parametrize("arguments", [("-n", "2"), ("-n", "auto")])
def test_workers_are_refused_with_pytest_processes(arguments: tuple[str, ...]) -> None:
    result = run(*MODELS, *SELECTION, *WORKERS, *arguments)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--numprocesses and --engine ray" in result.stderr
