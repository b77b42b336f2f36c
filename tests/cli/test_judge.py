"""`rebinding judge` and `rebinding prompt`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rebinding.api import judging
from rebinding.cli.commands import main
from tests.claims import forked_pytest
from tests.models.folders import save_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The commands and environments of processes that would be started; each ends with code 1."""
    calls: list[Any] = []

    def run(command: list[str], *, env: dict[str, str], **_options: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, env))
        return subprocess.CompletedProcess(command, 1, "")

    monkeypatch.setattr(judging.subprocess, "run", run)
    return calls


def test_headline_rows_are_judged_by_default(started: list[Any], tmp_path: Path) -> None:
    assert main(["judge", "planted:pointer", "FOLDER", "--report", str(tmp_path), "--samples", "24", "-n", "2"]) == 1
    ((command, environment),) = started
    assert command[1:4] == ["-m", "pytest", "-c"]
    assert str(ROOT / "claims") in command
    words = " ".join(command)
    assert "-p rebinding.pytest_plugin" in words
    assert "-m headline --model planted:pointer --model FOLDER" in words
    assert words.endswith(f"--report {tmp_path} --samples 24 -n 2")
    assert environment["PYTHONPATH"].split(":")[0] == str(ROOT)


def test_all_rows_and_single_rows(started: list[Any]) -> None:
    main(["judge", "planted:pointer", "--all"])
    main(["judge", "planted:pointer", "--test", "claims/test_x.py::test_y"])
    every, single = (command for command, _ in started)
    assert "headline" not in every
    assert "headline" not in single
    assert str(ROOT / "claims" / "test_x.py::test_y") in single


def test_one_row_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In an empty folder, whose own settings of pytest have no effect."""

    def run(command: list[str], *, env: dict[str, str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return forked_pytest.pytest(command[3:], Path.cwd(), env)

    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judging.subprocess, "run", run)
    selection = ("-k", "q_redirects and not controlled", "--samples", "12")
    assert main(["judge", "planted:pointer", "--all", *selection, "--json", "--no-store"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["claims"]
    assert (row["id"], row["verdict"]) == ("binding.q_redirects", "REPLICATED")
    assert row["command"].startswith("rebinding judge planted:pointer@llama --test 'claims/test_binding.py::")


PLANT = "planted:pointer?boxes=5"


@pytest.mark.parametrize(
    ("plant", "arguments", "message"),
    [
        (PLANT, ("--verb", "move"), "plants read swap sentences only"),
        (PLANT, ("--narrative",), "a plant expects"),
        (PLANT, ("--boxes", "5", "--operations", "2"), "is swapped more than once"),
        ("planted:pointer", ("--boxes", "5"), "5 boxes; this plant is made for up to 3"),
    ],
)
def test_a_plant_does_not_answer_another_template(
    plant: str, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answer would be luck. Without --answer the prompt is shown, and why there is none."""
    assert main(["prompt", "--model", plant, "--answer", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
    assert main(["prompt", "--model", plant, *arguments]) == 0
    output = capsys.readouterr()
    assert "Box [" in output.out
    assert f"{plant} is not asked: " in output.out
    assert message in output.out
    assert "the model answers" not in output.out


def test_a_plant_answers_its_own_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt", "--model", PLANT, "--boxes", "5"]) == 0
    assert "the model answers" in capsys.readouterr().out


def test_a_folder_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny(tmp_path / "model")
    assert main(["prompt", "--model", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "Box [" in output
    (folder / "model.safetensors").unlink()
    assert main(["prompt", "--model", str(folder)]) == 0
    assert capsys.readouterr().out == output
    assert main(["prompt", "--model", str(folder), "--answer"]) == 2
    assert capsys.readouterr().out == ""
