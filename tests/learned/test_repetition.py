"""`rebinding train learned:NAME` repeats the recipe of a card, and says whether the same adapter came out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.cli.commands import main
from rebinding.learned import shelf
from rebinding.learned.lora import WEIGHTS
from rebinding.learned.shelf import CARD_FILE, Base, Card, file_digest, parse
from rebinding.models import load, names

pytest.importorskip("gguf")

SHORT = ("--steps", "2", "--stories", "1", "--rank", "2", "--prompts", "3", "--learning-rate", "0.05")


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A learned model that the project has a card of, and not the matrices; its base is a tiny GGUF file."""
    from gguf import GGMLQuantizationType

    from tests.models.gguf_files import write

    file = tmp_path / "base.gguf"
    write(file, GGMLQuantizationType.Q8_0)
    base = Base("tiny", "llama", file.name, file_digest(file), (str(tmp_path),), "no command", "TINY", "its terms")
    for module in (shelf, names):
        monkeypatch.setattr(module, "BASES", {"tiny": base})
    monkeypatch.setattr(shelf, "ADAPTERS", tmp_path / "cards")
    monkeypatch.setenv(shelf.VARIABLE, str(tmp_path / "trained"))
    monkeypatch.setenv(base.variable, str(file))
    folder = tmp_path / "cards" / "tiny-all-0"
    assert main(["train", str(file), "--out", str(folder), "--name", "tiny", "--license", "mit", *SHORT]) == 0
    (folder / WEIGHTS).rename(tmp_path / "expected.safetensors")
    return "learned:tiny"


def test_the_same_machine_makes_the_same_adapter(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", name]) == 0
    output = capsys.readouterr().out
    learned = parse(name)
    assert learned.adapter_folder == tmp_path / "trained" / "tiny-all-0"
    assert (learned.adapter_folder / WEIGHTS).read_bytes() == (tmp_path / "expected.safetensors").read_bytes()
    assert "has the sha256 of the project's card" in output
    assert "judge it with pytest claims --model 'learned:tiny?seed=0&order=all'" in output
    assert "without an adapter" not in output, "the card has these accuracies"
    assert Card.read(learned.adapter_folder) == Card.read(learned.folder)
    loaded = load(name, device="cpu")
    assert loaded.weights == "dequantised from Q8_0, with the adapter tiny-all-0"


def test_another_adapter_is_said_to_be_another(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = parse(name).folder / CARD_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"adapter_sha256": "0" * 64}))
    capsys.readouterr()
    assert main(["train", name]) == 0
    output = capsys.readouterr().out
    assert "the project's card 000000000000...: this machine rounds otherwise" in output
    assert f"compare its accuracies with those of {file}" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "3"), "--steps is set, and learned:tiny?seed=0&order=all is trained by the recipe of its card"),
        (("--learning-rate", "0.1"), "--learning-rate is set"),
        (("--accuracy", "0.9"), "--accuracy is set"),
        (("--license", "mit"), "--license is set"),
    ],
)
def test_a_recipe_of_its_own_is_refused(
    name: str, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["train", name, *options]) == 2
    assert message in capsys.readouterr().err


def test_an_adapter_of_the_project_needs_another_folder(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", "learned:smollm2"]) == 2
    assert "comes with the project: to train it again, give --out FOLDER" in capsys.readouterr().err
    assert main(["train", "owner/name"]) == 2
    assert "--out FOLDER is missing" in capsys.readouterr().err
