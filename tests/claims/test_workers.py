"""Workers of pytest-xdist say nothing, whatever ends them: the process that the user started speaks for all."""

from __future__ import annotations

import subprocess

import pytest

from tests.claims import slow_worker
from tests.claims.runs import ok, run

pytestmark = pytest.mark.slow

ROW = "binding.q_redirects"
FEW = ("--model", "planted:pointer", "-k", "q_redirects and not controlled", "--samples", "12", "--no-store")


@pytest.fixture(scope="module")
def interrupted_at_its_end(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run that comes to its end, and whose worker is interrupted when it has sent everything."""
    report = tmp_path_factory.mktemp("workers") / "report"
    done = run(*FEW, "-n", "1", "--report", str(report), "-p", slow_worker.__name__)
    ok(done)
    assert (report / "claims.json").exists()
    return done


def test_a_finished_run_is_not_called_interrupted(interrupted_at_its_end: subprocess.CompletedProcess[str]) -> None:
    done = interrupted_at_its_end
    for text in ("interrupted", "Exit:", "KeyboardInterrupt", "Traceback"):
        assert text not in done.stdout + done.stderr
    assert f"{slow_worker.SENT} gw0" in done.stderr, "nothing was tried: the plugin did not interrupt the worker"
    assert done.stdout.count(f"  {ROW} ") == 1, "the table is printed once"


def test_the_report_is_not_written_by_workers(interrupted_at_its_end: subprocess.CompletedProcess[str]) -> None:
    """A worker knows its own claims only; and writing them takes it so long that execnet interrupts it."""
    assert slow_worker.WROTE not in interrupted_at_its_end.stderr
