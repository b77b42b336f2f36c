"""Damaged files of a store: evidence and verdict stay equal, every damage is reported once, nothing is lost."""

from __future__ import annotations

import resource
import warnings
from pathlib import Path
from random import Random

import pytest

from rebinding.evidence.store import StoreWarning
from tests.oracles.faults.damages import DAMAGES, copied
from tests.oracles.faults.small_run import RunOutput, run
from tests.oracles.faults.stores import content
from tests.oracles.faults.tally import Tally
from tests.oracles.faults.users import ordinary_user

MEMORY = 1 << 30
"""Bytes by which the process may have grown at its peak: a hundredth of what the larger bomb unfolds to."""
ALL = 200


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunOutput]:
    """A store that nothing happened to, and what was found when it was made."""
    folder = tmp_path_factory.mktemp("corruption")
    return folder, run(folder / "whole")


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_damaged(fault: str, dice: Random, folder: Path, expected: RunOutput) -> tuple[int, list[str]]:
    """Damage a copy and run again: how many reports there were, and what is wrong."""
    root, before = copied(folder / "whole", folder / "damaged"), peak()
    hit = DAMAGES[fault](dice, root)
    outside_content = content(folder / "outside")
    with ordinary_user(), warnings.catch_warnings(record=True) as excinfo:
        warnings.simplefilter("always")
        result = run(root)
    messages = [str(warning.message) for warning in excinfo if warning.category is StoreWarning]
    faults = {
        "other evidence, or another verdict": not result.equals(expected),
        "not each damage once": len(messages) != len(hit)
        or not all(any(str(path) in line for line in messages) for path in hit),
        "the store is not as it was": content(root) != content(folder / "whole"),
        "something outside was changed": content(folder / "outside") != outside_content,
        "a folder was thrown away": "folder" in fault and not list(root.rglob("thesis.txt")),
        "memory": peak() - before > MEMORY,
    }
    return len(messages), [name for name, wrong in faults.items() if wrong]


@pytest.mark.parametrize("fault", DAMAGES)
def test_every_sort_of_damage(fault: str, baseline: tuple[Path, RunOutput]) -> None:
    _, wrong = run_damaged(fault, Random(fault), *baseline)
    assert not wrong


@pytest.mark.slow
def test_two_hundred_damages(baseline: tuple[Path, RunOutput], capsys: pytest.CaptureFixture[str]) -> None:
    """Each sort in turn, everything else drawn."""
    tally, names = Tally(), list(DAMAGES)
    for number in range(ALL):
        fault = names[number % len(names)]
        tally.add(fault, *run_damaged(fault, Random(number), *baseline))
    with capsys.disabled():
        print("", *tally.lines, sep="\n")
    assert not {name: wrong for name, wrong in tally.wrong.items() if wrong}
    assert sum(tally.attempts.values()) == ALL
