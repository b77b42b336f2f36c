"""Whatever happens to the store, the verdicts are the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rebinding.evidence.shards import beside
from rebinding.power.rows import claims
from tests.claims.runs import ROOT, ok, run, verdicts
from tests.faults.stores import shards

pytestmark = pytest.mark.slow
ROWS = ("binding.q_redirects", "qk_cancels", "e_prime", "robust.third_slot", "chain.A_logits")
WANTED = " or ".join(ROWS)
KEPT = (".parquet", ".safetensors", ".sha256")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A store after a run, and the verdicts of that run."""
    there = tmp_path_factory.mktemp("kept")
    return there / "store", judged(there / "store", there / "first.xml")


def judged(store: Path, junit: Path) -> dict[str, str]:
    ok(run("--model", "planted:pointer", "--store", str(store), "--junitxml", str(junit), "-k", WANTED))
    found = verdicts(junit)
    assert set(found) == {claim.id for claim in claims() if any(row in claim.id for row in ROWS)}
    return found


def whole(store: Path) -> dict[Path, int]:
    """Tables that have their checksum beside them, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in shards(store, ".parquet") if beside(path).is_file()}


def test_a_second_run_reads_what_the_first_has_computed(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    store, first = kept
    before = {path: path.stat().st_mtime_ns for path in shards(store, *KEPT)}
    assert before
    assert judged(store, tmp_path / "again.xml") == first
    assert {path: path.stat().st_mtime_ns for path in shards(store, *KEPT)} == before


def test_damage_is_noticed_and_made_good(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    store, first = kept
    ruined = shards(store, *KEPT)
    for number, path in enumerate(ruined):
        content = path.read_bytes()
        path.write_bytes((content[: len(content) // 2], b"", content[::-1])[number % 3])
    done = run("--model", "planted:pointer", "--store", str(store), "-k", WANTED)
    ok(done)
    assert "damaged" in done.stdout
    assert judged(store, tmp_path / "again.xml") == first


def test_without_its_store_a_run_says_the_same(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    junit = tmp_path / "none.xml"
    ok(run("--model", "planted:pointer", "--no-store", "--junitxml", str(junit), "-k", WANTED))
    assert verdicts(junit) == kept[1]


def test_a_killed_run_leaves_a_store_to_go_on_from(kept: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    store = tmp_path / "store"
    given = [
        sys.executable,
        "-m",
        "pytest",
        "claims",
        "--model",
        "planted:pointer",
        "--store",
        str(store),
        "-k",
        WANTED,
    ]
    running = subprocess.Popen([*given, "-q"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while running.poll() is None and not whole(store):
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "it was killed, and not done before"
    left = whole(store)
    assert judged(store, tmp_path / "again.xml") == kept[1]
    now = whole(store)
    assert {path: now[path] for path in left} == left, "what was done is not done again"
    assert len(now) > len(left)
