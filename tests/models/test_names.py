"""What names stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.models import ALIASES, Origin, origin
from rebinding.models.errors import UnknownName

GEMMA = ALIASES["gemma2-9b"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma2-9b", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
        ("google/gemma-2-9b-it", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
        ("gemma2-9b@v1", Origin("hub", "google/gemma-2-9b-it", GEMMA, "v1")),
        ("Qwen/Qwen3-8B", Origin("hub", "Qwen/Qwen3-8B")),
        ("Qwen/Qwen3-8B@refs/pr/3", Origin("hub", "Qwen/Qwen3-8B", None, "refs/pr/3")),
        ("planted:pointer@gemma2", Origin("planted", "pointer@gemma2")),
        ("shape:gemma2-9b", Origin("shape", "gemma2-9b", GEMMA)),
        (" gemma2-9b ", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
    ],
)
def test_a_name_stands_for(name: str, expected: Origin) -> None:
    assert origin(name) == expected


def test_a_folder_is_a_folder_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("owner/name", "gemma2-9b", "a=b", "x@y"):
        (tmp_path / name).mkdir(parents=True)
        assert origin(name) == Origin("folder", name)
    assert origin("gemma2-9b=owner/name") == Origin("folder", "owner/name", GEMMA)
    assert origin(str(tmp_path)) == Origin("folder", str(tmp_path))


def test_a_revision_may_stand_beside_the_name() -> None:
    assert origin("Qwen/Qwen3-8B", revision="v2") == origin("Qwen/Qwen3-8B@v2")
    assert origin("Qwen/Qwen3-8B@v2", revision="v2") == origin("Qwen/Qwen3-8B@v2")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", UnknownName, "empty name"),
        ("gemma2-9B", UnknownName, "did you mean gemma2-9b"),
        ("gpt2", UnknownName, r"unknown model 'gpt2' \(did you mean openai-community/gpt2\?\)"),
        ("nothing", UnknownName, "unknown model 'nothing'; a model is one of gemma2-9b"),
        ("shape:gemma2", UnknownName, "did you mean shape:gemma2-9b"),
        ("planted:pionter", UnknownName, "no mechanism 'pionter'"),
        ("planted:global+missing", UnknownName, "global has no variant 'missing'"),
        ("planted:pointer@nope", UnknownName, "no architecture 'nope'"),
        ("planted:pointer?box=5", UnknownName, "'box=5' in 'pointer\\?box=5' is no option"),
        ("learned:smolm2", UnknownName, "did you mean learned:smollm2"),
        ("learned:smollm2?seed=9", UnknownName, "has no recipe in the project"),
        ("gemma9=.", UnknownName, "none of the paper's models"),
        ("gemma2-9b=nowhere", UnknownName, "no folder 'nowhere'"),
        ("./nowhere", UnknownName, "no folder './nowhere'"),
        ("a/b/c", UnknownName, "no folder 'a/b/c'"),
        ("owner/name@", UnknownName, "names no revision"),
    ],
)
def test_other_names_are_refused(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        origin(name)


def test_revisions_that_contradict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="give one of the two"):
        origin("Qwen/Qwen3-8B@v1", revision="v2")
    with pytest.raises(UnknownName, match="has no revisions"):
        origin(str(tmp_path), revision="v2")
