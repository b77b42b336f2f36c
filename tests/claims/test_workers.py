"""Workers of pytest-xdist print nothing, whatever ends them: only the process that the user started prints."""

from __future__ import annotations

import subprocess

import pytest

from tests.claims import interrupted_worker
from tests.claims.run_claims import assert_ok, run

pytestmark = pytest.mark.slow

ROW = "binding.q_redirects"
OPTIONS = ("--model", "planted:pointer", "-k", "q_redirects and not controlled", "--samples", "12", "--no-store")


@pytest.fixture(scope="module")
def late_interrupt(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run that comes to its end, and whose worker is interrupted when it has sent everything."""
    report = tmp_path_factory.mktemp("workers") / "report"
    result = run(*OPTIONS, "-n", "1", "--report", str(report), "-p", interrupted_worker.__name__)
    assert_ok(result)
    assert (report / "claims.json").exists()
    return result


def test_a_finished_run_is_not_called_interrupted(late_interrupt: subprocess.CompletedProcess[str]) -> None:
    result = late_interrupt
    for text in ("interrupted", "Exit:", "KeyboardInterrupt", "Traceback"):
        assert text not in result.stdout + result.stderr
    assert f"{interrupted_worker.SENT} gw0" in result.stderr, (
        "nothing was tried: the plugin did not interrupt the worker"
    )
    assert result.stdout.count(f"  {ROW} ") == 1, "the table is printed once"


def test_the_report_is_not_written_by_workers(late_interrupt: subprocess.CompletedProcess[str]) -> None:
    """A worker knows its own claims only; and writing them takes it so long that execnet interrupts it."""
    assert interrupted_worker.WROTE not in late_interrupt.stderr
