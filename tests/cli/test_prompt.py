"""`prompt`: a planted model is asked what it was made for, and a folder's prompts are shown without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.cli.commands import main
from tests.models.folders import save_tiny

PLANT = "planted:pointer?boxes=5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--verb", "move"), "plants read swap sentences only"),
        (("--narrative",), "a plant expects"),
        (("--boxes", "5", "--operations", "2"), "is swapped more than once"),
        (("--boxes", "6"), "this plant is made for up to 5"),
    ],
)
def test_a_plant_does_not_answer_another_template(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answer would be luck. Without --answer the prompt is shown, and why there is none."""
    assert main(["prompt", "--model", PLANT, "--answer", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
    assert main(["prompt", "--model", PLANT, *arguments]) == 0
    output = capsys.readouterr()
    assert f"{PLANT} is not asked: " in output.out
    assert message in output.out
    assert "the model answers" not in output.out


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
