"""Every command that takes a model refuses a name that is none before it prints or loads anything."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from rebinding.cli.commands import SUBCOMMANDS, main

BEFORE_NAME: Mapping[str, tuple[str, ...]] = {
    "certify": (),
    "discover": ("--no-store", "--model"),
    "prompt": ("--model",),
    "report": ("folder", "--recheck", "1", "--model"),
    "train": ("--out", "adapter"),
}
"""The commands that take any model, and what precedes its name. `planted` takes mechanisms only."""
NAMES = {
    "gpt2": "(did you mean openai-community/gpt2?)",
    "gemma-2-9b-it": "(did you mean google/gemma-2-9b-it?)",
    "gemma2-9": "(did you mean gemma2-9b?)",
    "pointer": "(did you mean planted:pointer?)",
    "planted:nope": "there is no mechanism 'nope'",
    "planted:pionter": "(did you mean planted:pointer?)",
    "planted:pointer+mising": "(did you mean planted:pointer+missing or planted:pointer+misprint?)",
    "planted:pointer@gema2": "(did you mean planted:pointer@gemma2",
    "learned:nope": "bases are smollm2",
    "learned:smollm2?seed=9": "has no recipe in the project",
    "shape:gemma2-9": "(did you mean shape:gemma2-9b?)",
    "./nowhere": "there is no folder './nowhere'",
    "nowhere.gguf": "there is no file 'nowhere.gguf'",
}


@pytest.fixture(autouse=True)
def forbid_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run in, and a failure that no command catches where a model is opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rebinding.models.loaded_model._open", lambda *_: pytest.fail("a model is opened"))


def has_model_argument(subcommand: str) -> bool:
    """Whether a command has an argument for a model that is not a choice of a few."""
    parser = argparse.ArgumentParser()
    importlib.import_module(SUBCOMMANDS[subcommand].module).arguments(parser)
    return any(action.dest in ("model", "base") and action.choices is None for action in parser._actions)


def test_every_command_that_takes_a_model_is_here() -> None:
    assert {subcommand for subcommand in SUBCOMMANDS if has_model_argument(subcommand)} == set(BEFORE_NAME)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("subcommand", BEFORE_NAME)
def test_a_name_is_refused_before_anything_is_printed(
    subcommand: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([subcommand, *BEFORE_NAME[subcommand], name]) == 2
    output = capsys.readouterr()
    assert NAMES[name] in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pionter", "planted:pionter (did you mean planted:pointer?): there is no mechanism"),
        ("planted:pointer@gema2", "(did you mean planted:pointer@gemma2"),
        ("pointer+mising", "(did you mean planted:pointer+missing"),
    ],
)
def test_a_mechanism_is_refused_with_what_is_near(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planted", name]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts"]) == 2
    assert "unknown command 'prompts'; did you mean 'prompt'?\n" in capsys.readouterr().err
