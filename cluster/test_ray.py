"""Two workers on Ray judge as this process does, whatever is killed on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cluster.runs import FEW, ON_RAY, SOME, begun, kill, learned, run, shards, table, workers

KILLS = 5
EARLY = 0.75
"""Moments of kills are drawn from this share of a run, counted in what it has stored: no clock, so no faster machine is
done before them."""
PATIENCE = 900.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """What this process finds, and keeps."""
    store = tmp_path_factory.mktemp("here")
    return run(store, *FEW), shards(store)


def test_the_whole_table_is_that_of_this_process(tmp_path: Path) -> None:
    """Every claim; the same computation in other processes, so every digit, and every byte in the store."""
    own, theirs = run(tmp_path / "here", "-vv"), run(tmp_path / "ray", "-vv", *ON_RAY)
    assert len(own) > 100  # a line a claim
    assert own == theirs
    assert shards(tmp_path / "here") == shards(tmp_path / "ray")


@pytest.mark.parametrize("model", learned())
def test_a_model_that_learned_is_judged_alike(model: str, tmp_path: Path) -> None:
    """A real model, opened by each worker for itself, and stages that wait for one another."""
    own, theirs = (run(tmp_path / name, *SOME, *how, model=model) for name, how in (("here", ()), ("ray", ON_RAY)))
    assert own == theirs
    assert len(own) >= 5  # a head line, and a line a claim
    assert shards(tmp_path / "here") == shards(tmp_path / "ray")


@pytest.mark.parametrize("seed", [0])
def test_a_worker_killed_at_random_moments_changes_nothing(
    seed: int, tmp_path: Path, undisturbed: tuple[list[str], dict[str, bytes]]
) -> None:
    """Five kills, at moments and of workers that were drawn without looking at what they are at."""
    random, killed = Random(seed), 0
    moments = sorted(random.sample(range(1, int(EARLY * len(undisturbed[1]))), KILLS))
    with begun(tmp_path, *FEW, *ON_RAY) as process:
        for moment in moments:
            _until(partial(_has, tmp_path, moment))
            _until(lambda: bool(workers(process.pid)))
            killed += kill(random.choice(workers(process.pid)))
        output, _ = process.communicate(timeout=PATIENCE)
    assert killed == KILLS
    assert (table(output), shards(tmp_path)) == undisturbed


def test_a_driver_that_was_killed_goes_on_from_the_store(
    tmp_path: Path, undisturbed: tuple[list[str], dict[str, bytes]]
) -> None:
    """What was there is neither computed nor written again."""
    with begun(tmp_path, *FEW, *ON_RAY) as process:
        _until(lambda: len(shards(tmp_path)) > len(undisturbed[1]) // 3)
        process.kill()
        process.wait()
    before = shards(tmp_path)
    whole = {name for name in before if (tmp_path / name).with_suffix(".sha256").is_file()}
    written = {name: (tmp_path / name).stat().st_mtime_ns for name in whole}
    assert len(undisturbed[1]) // 3 < len(before) < len(undisturbed[1])
    assert (run(tmp_path, *FEW, *ON_RAY), shards(tmp_path)) == undisturbed
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in whole} == written


def _has(store: Path, count: int) -> bool:
    return len(shards(store)) >= count


def _until(what: Callable[[], bool]) -> None:
    """Wait for something; an error if it does not come."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.2)
