"""Options and names that cannot be are refused before anything is loaded, computed or printed."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from rebinding.cli.commands import SUBCOMMANDS, main
from rebinding.evidence import Evidence
from rebinding.evidence.store import Store
from rebinding.experiments.prompts import MOST_PROMPTS

DISCOVER = ("discover", "--no-store", "--model", "planted:pointer")
SEARCH = (*DISCOVER, "--positions", "all")
CERTIFY = ("certify", "planted:pointer")
TRAIN = ("train", "model", "--license", "mit", "--out")
REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("prompt", "--answer"), "--answer needs a --model"),
    (("prompt", "--operations", "-1"), "--operations -1: give 0 or more"),
    ((*DISCOVER, "--samples", "0"), f"--samples 0: give 1 to {MOST_PROMPTS}"),
    ((*DISCOVER, "--samples", "9" * 30), f"give 1 to {MOST_PROMPTS}"),
    ((*DISCOVER, "--skip-prompts", "-1"), "--skip-prompts -1: give 0 or more"),
    ((*DISCOVER, "--block", "0"), "--block 0: give 1 or more"),
    ((*DISCOVER, "--min-effect", "nan"), "--min-effect nan: give 0 or more"),
    ((*DISCOVER, "--boxes", "27"), "--boxes 27: give 2 to 26"),
    ((*DISCOVER, "--boxes", "5"), "give --model planted:pointer@llama?boxes=5"),
    ((*DISCOVER, "--save", "nowhere/c.json"), "--save nowhere/c.json: there is no folder nowhere"),
    ((*DISCOVER, "--save", "folder"), "--save folder: this is a folder"),
    ((*DISCOVER, "--figure", "nowhere/c.png"), "--figure nowhere/c.png: there is no folder nowhere"),
    ((*DISCOVER, "--figure", "c.nope"), "--figure c.nope: a file cannot be written as 'nope'"),
    (("discover", "--model", "planted:pointer", "--store", "file"), "--store file: file is a file"),
    ((*SEARCH, "--minutes", "-1"), "--minutes -1.0: give 0 or more"),
    ((*SEARCH, "--share", "2"), "share and alpha lie between 0 and 1"),
    ((*SEARCH, "--graph", "nowhere/g.json"), "--graph nowhere/g.json: there is no folder nowhere"),
    ((*SEARCH, "--compare", "g.json"), "--compare g.json: there is no such file"),
    ((*CERTIFY, "--layers", "3-1"), "--layers 3-1: give numbers and ranges from 0 on, such as 0,12-15,31"),
    ((*CERTIFY, "--output", "nowhere/c.json"), "--output nowhere/c.json: there is no folder nowhere"),
    ((*CERTIFY, "--output", "c.txt"), "--output c.txt: a file cannot be written as 'txt'; end with json"),
    ((*CERTIFY, "--store", "file"), "--store file: file is a file"),
    ((*CERTIFY, "--revision", "main"), "'planted:pointer@llama' is no Hub model and has no revisions"),
    (("store", "--store", "file"), "--store file: there is no such folder"),
    (("store", "clear", "--store", "nowhere"), "--store nowhere: there is no such folder"),
    ((*TRAIN, "file"), "--out file: file is a file"),
    ((*TRAIN, "file/inner"), "--out file/inner: file is a file"),
    ((*TRAIN, "out", "--save-merged", "file"), "--save-merged file: file is a file"),
    ((*TRAIN, "out", "--prompts", "0"), f"--prompts 0: give 1 to {MOST_PROMPTS}"),
    ((*TRAIN, "out", "--learning-rate", "nan"), "--learning-rate nan: give a number above 0"),
    ((*TRAIN, "out", "--boxes", "99"), "--boxes 99: give 3 to 17"),
    ((*TRAIN, "out", "--seed", "9" * 30), "--seed 9999"),
    (("train", "planted:pointer", "--out", "out", "--license", "mit"), "planted:pointer is a planted model"),
)


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED, ids=lambda arguments: " ".join(arguments) if isinstance(arguments, tuple) else ""
)
def test_bad_options(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("rebinding.models.loaded_model._open", lambda *_, **__: pytest.fail("the work has begun"))
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert {path.name for path in tmp_path.iterdir()} <= {"folder", "model", "file"}


def test_an_experiment_that_a_store_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path).put("toy", "a" * 8, Evidence("toy", pd.DataFrame({"prompt": [0]}), {}))
    assert main(["store", "clear", "--store", str(tmp_path), "--experiment", "toys"]) == 2
    assert f"--experiment toys: {tmp_path} holds none of it; it has toy" in capsys.readouterr().err
    assert main(["store", "clear", "--store", str(tmp_path), "--experiment", "toy"]) == 0
    assert "1 shards removed" in capsys.readouterr().out


def test_an_answer_that_cannot_be_had_is_refused_before_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("its weights are missing")

    monkeypatch.setattr("rebinding.cli.prompt.load", refuse)
    assert main(["prompt", "--model", "planted:pointer", "--answer"]) == 2
    output = capsys.readouterr()
    assert output.err == "rebinding prompt: its weights are missing\n"
    assert output.out == ""


BEFORE_NAME: Mapping[str, tuple[str, ...]] = {
    "certify": (),
    "discover": ("--no-store", "--model"),
    "prompt": ("--model",),
    "report": ("folder", "--recheck", "1", "--model"),
    "sensitivity": ("--circuit", __file__, "--model"),
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


@pytest.fixture
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


@pytest.mark.usefixtures("forbid_loading")
@pytest.mark.parametrize(
    ("subcommand", "name"),
    [*(("prompt", name) for name in NAMES), *product(sorted(BEFORE_NAME.keys() - {"prompt"}), ("gpt2", "./nowhere"))],
)
def test_a_name_is_refused_before_anything_is_printed(
    subcommand: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([subcommand, *BEFORE_NAME[subcommand], name]) == 2
    output = capsys.readouterr()
    assert NAMES[name] in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("forbid_loading")
def test_a_mechanism_is_refused_with_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    for name, near in (
        ("pionter", "planted:pointer?): there is no mechanism"),
        ("planted:pointer@gema2", "planted:pointer@gemma2"),
        ("pointer+mising", "planted:pointer+missing"),
    ):
        assert main(["planted", name]) == 2
        output = capsys.readouterr()
        assert f"(did you mean {near}" in output.err
        assert output.out == ""


@pytest.mark.parametrize("stage", ["importlib.import_module", "parse"])
def test_ctrl_c_before_a_command_runs_is_one_line(
    stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"rebinding.cli.commands.{stage}", interrupt)
    assert main(["prompt"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("rebinding prompt: interrupted; ")
    assert output.err.count("\n") == 1


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts"]) == 2
    assert "unknown command 'prompts'; did you mean 'prompt'?\n" in capsys.readouterr().err
