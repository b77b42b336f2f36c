"""Hostile models are refused, each with its own message, in bounded time and memory; none of their code runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rebinding.models.errors import UnknownName
from rebinding.models.names import origin
from tests.oracles.faults.hostile_models import HOSTILE_MODELS

ROOT = Path(__file__).parents[3]


EVERYDAY = (
    *("a beginning that is no number", "index of a pickle", "quantised in a list", "an adapter"),
    *("configuration without end", "token below nothing", "weights without end", "pickle"),
    *("tokenizer of its own", "template that writes"),
)
"""A model for every error, and for each of its reasons."""
Outcome: TypeAlias = dict[str, Any]


def load_all(folder: Path, *names: str) -> dict[str, Outcome]:
    """What became of each, in a process of its own that has as much memory as it needs and a gigabyte."""
    command = [sys.executable, "-m", "tests.oracles.faults.hostile_loads", str(folder), *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    outcomes: dict[str, Outcome] = json.loads(result.stdout)
    return outcomes


def test_there_are_many_hostile_models() -> None:
    assert len(HOSTILE_MODELS) >= 40
    assert {HOSTILE_MODELS[name].error for name in EVERYDAY} == {model.error for model in HOSTILE_MODELS.values()}


def test_a_model_for_every_error_is_refused(tmp_path: Path) -> None:
    """The good one is loaded: so what refuses the others is what was done to them."""
    outcomes = load_all(tmp_path, *EVERYDAY)
    assert (outcomes["as it is"]["code"], outcomes["as it is"]["error"]) == (0, None)
    for name in EVERYDAY:
        assert_refused(name, outcomes[name])


@pytest.mark.slow
def test_hostile_models_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    outcomes = load_all(tmp_path)
    for name in HOSTILE_MODELS:
        with subtests.test(name):
            assert_refused(name, outcomes[name])


def assert_refused(name: str, outcome: Outcome) -> None:
    expected = HOSTILE_MODELS[name]
    assert outcome["code"] == 0, "the kernel ended it: it took more time or memory than there was"
    assert (outcome["error"], outcome["module"]) == (expected.error, "rebinding.models.errors"), outcome["says"]
    assert expected.message in outcome["says"]
    assert not outcome["ran"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x/\ry", "./\x07bell", "owner/\u202eeman", "a\u200bb"])
def test_names_that_steer_a_terminal(name: str) -> None:
    """Whether there is such a folder or not; the message shows what cannot be seen."""
    with pytest.raises(UnknownName, match="cannot be seen") as excinfo:
        origin(name)
    assert str(excinfo.value).isascii()
    assert str(excinfo.value).isprintable()
