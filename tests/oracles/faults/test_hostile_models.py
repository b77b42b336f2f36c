"""Hostile models are refused, each with its own message, in bounded time and memory; none of their code runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rebinding.models.errors import UnknownName
from rebinding.models.names import origin
from tests.oracles.faults.hostile_models import HOSTILE_MODELS
from tests.oracles.faults.processes import run_module

EVERYDAY = (
    *("a beginning that is no number", "index of a pickle", "quantised in a list", "an adapter"),
    *("configuration without end", "token below nothing", "weights without end", "pickle"),
    *("tokenizer of its own", "template that writes"),
)
"""A model for every error, and for each of its reasons."""
Outcome: TypeAlias = dict[str, Any]


def test_a_model_for_every_error_is_refused(tmp_path: Path) -> None:
    """The good one is loaded: so what refuses the others is what was done to them."""
    assert {HOSTILE_MODELS[name].error for name in EVERYDAY} == {model.error for model in HOSTILE_MODELS.values()}
    outcomes = run_module("hostile_models", tmp_path, *EVERYDAY)
    assert (outcomes["as it is"]["code"], outcomes["as it is"]["error"]) == (0, None)
    for name in EVERYDAY:
        assert_refused(name, outcomes[name])


@pytest.mark.slow
def test_hostile_models_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    outcomes = run_module("hostile_models", tmp_path)
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
def test_a_name_that_steers_a_terminal_is_refused_visibly(name: str) -> None:
    """Whether there is such a folder or not; the message shows what cannot be seen."""
    with pytest.raises(UnknownName, match="cannot be seen") as excinfo:
        origin(name)
    assert str(excinfo.value).isascii()
    assert str(excinfo.value).isprintable()
