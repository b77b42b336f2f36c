"""Two workers on Ray judge as this process does, whatever is killed on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cluster.runs import FEW_ROWS, MODEL_ROWS, ON_RAY, kill, learned, run, shards, start_run, table, workers

KILLS = 5
EARLY_SHARE = 0.75
"""Moments of kills are drawn from this share of a run, counted in what it has stored: no clock, so no faster machine is
done before them."""
PATIENCE = 900.0


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """What this process finds, and keeps."""
    store = tmp_path_factory.mktemp("here")
    return run(store, *FEW_ROWS), shards(store)


def test_the_whole_table_is_that_of_this_process(tmp_path: Path) -> None:
    """Every claim; the same computation in other processes, so every digit, and every byte in the store."""
    local, ray = run(tmp_path / "here", "-vv"), run(tmp_path / "ray", "-vv", *ON_RAY)
    assert len(local) > 100  # a line a claim
    assert local == ray
    assert shards(tmp_path / "here") == shards(tmp_path / "ray")


@pytest.mark.parametrize("model", learned())
def test_a_model_that_learned_is_judged_alike(model: str, tmp_path: Path) -> None:
    """A real model, opened by each worker for itself, and stages that wait for one another."""
    local, ray = (
        run(tmp_path / name, *MODEL_ROWS, *options, model=model) for name, options in (("here", ()), ("ray", ON_RAY))
    )
    assert local == ray
    assert len(local) >= 5  # a head line, and a line a claim
    assert shards(tmp_path / "here") == shards(tmp_path / "ray")


@pytest.mark.parametrize("seed", [0])
def test_a_worker_killed_at_random_moments_changes_nothing(
    seed: int, tmp_path: Path, baseline: tuple[list[str], dict[str, bytes]]
) -> None:
    """Five kills, at moments and of workers that were drawn without looking at what they are at."""
    random, killed = Random(seed), 0
    moments = sorted(random.sample(range(1, int(EARLY_SHARE * len(baseline[1]))), KILLS))
    with start_run(tmp_path, *FEW_ROWS, *ON_RAY) as process:
        for moment in moments:
            _wait_until(partial(_has, tmp_path, moment))
            _wait_until(lambda: bool(workers(process.pid)))
            killed += kill(random.choice(workers(process.pid)))
        output, _ = process.communicate(timeout=PATIENCE)
    assert killed == KILLS
    assert (table(output), shards(tmp_path)) == baseline


def test_a_driver_that_was_killed_goes_on_from_the_store(
    tmp_path: Path, baseline: tuple[list[str], dict[str, bytes]]
) -> None:
    """What was there is neither computed nor written again."""
    with start_run(tmp_path, *FEW_ROWS, *ON_RAY) as process:
        _wait_until(lambda: len(shards(tmp_path)) > len(baseline[1]) // 3)
        process.kill()
        process.wait()
    before = shards(tmp_path)
    complete = {name for name in before if (tmp_path / name).with_suffix(".sha256").is_file()}
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in complete}
    assert len(baseline[1]) // 3 < len(before) < len(baseline[1])
    assert (run(tmp_path, *FEW_ROWS, *ON_RAY), shards(tmp_path)) == baseline
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in complete} == times


def _has(store: Path, count: int) -> bool:
    return len(shards(store)) >= count


def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something; an error if it does not come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.2)
