"""What names stand for, and what is suggested for a name that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.learned.shelf import learned_models
from rebinding.models import ALIASES, Origin, origin
from rebinding.models.errors import UnknownName
from rebinding.models.names import HUB_IDS, names_by_prefix, names_without_prefix, nearest

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty name"),
        ("gemma2-9B", "did you mean gemma2-9b"),
        ("gpt2", r"unknown model 'gpt2' \(did you mean openai-community/gpt2\?\)"),
        ("nothing", "unknown model 'nothing'; a model is one of gemma2-9b"),
        ("shape:gemma2", "did you mean shape:gemma2-9b"),
        ("planted:pionter", "^planted:pionter.*no mechanism 'pionter'"),
        ("planted:global+missing", "^planted:global[+]missing.*global has no variant 'missing'"),
        ("planted:pointer@nope", "^planted:pointer@nope.*no architecture 'nope'"),
        ("planted:pointer?box=5", "'box=5' in 'pointer\\?box=5' is no option"),
        ("planted:", "^planted:"),
        ("learned:smolm2", "^learned:smolm2.*did you mean learned:smollm2"),
        ("learned:smollm2?seed=9", "has no recipe in the project"),
        ("gemma9=.", "none of the paper's models"),
        ("gemma2-9b=nowhere", "no folder 'nowhere'"),
        ("./nowhere", "no folder './nowhere'"),
        ("a/b/c", "no folder 'a/b/c'"),
        ("owner/name@", "names no revision"),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    """The refusal of the name of a built-in model starts with the name."""
    with pytest.raises(UnknownName, match=message):
        origin(name)


def test_a_revision_is_given_once(tmp_path: Path) -> None:
    """Beside the name or in it; both if they agree."""
    for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B@v2"):
        assert origin(name, revision="v2") == origin("Qwen/Qwen3-8B@v2")
    with pytest.raises(UnknownName, match="give one of the two"):
        origin("Qwen/Qwen3-8B@v1", revision="v2")
    with pytest.raises(UnknownName, match="has no revisions"):
        origin(str(tmp_path), revision="v2")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("gpt2", ["openai-community/gpt2"]),
        ("GPT-2", ["openai-community/gpt2"]),
        ("distilgpt2", ["distilbert/distilgpt2"]),
        ("SmolLM2-135M", ["HuggingFaceTB/SmolLM2-135M"]),
        ("Llama-3.1-8B-Instruct", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("gemma2-9", ["gemma2-9b"]),
        ("llama3", ["llama3.2-3b", "llama3.1-8b"]),
        ("smollm2", ["learned:smollm2"]),
        ("pointer@gemma3", ["planted:pointer@gemma3"]),
        ("plantd:pointer", ["planted:pointer"]),
        ("planted:pionter", ["planted:pointer"]),
        ("planted:lexcal?boxes=5", ["planted:lexical"]),
        ("planted:global+missing", ["planted:pointer+missing", "planted:global"]),
        ("learned:smolm2", ["learned:smollm2"]),
        ("shape:gemma2-9", ["shape:gemma2-9b"]),
        ("planted:nope", []),
        ("planted:pointer?box=5", []),
        ("learned:smollm2?seed=9", []),
        ("nothing of the sort", []),
        ("x" * 100_000, []),
    ],
)
def test_nearest_name_is_suggested(name: str, names: list[str]) -> None:
    assert nearest(name) == names


def test_every_name_that_may_be_suggested_is_one() -> None:
    of_prefixes = (name for names in names_by_prefix().values() for name in names.values())
    names = {*names_without_prefix().values(), *of_prefixes}
    assert {*ALIASES, *HUB_IDS, *(learned.name for learned in learned_models())} <= names
    assert {f"shape:{alias}" for alias in ALIASES} <= names
    assert {"planted:recency", "planted:global@gemma2", "planted:pointer+missing@llama"} <= names
    for name in names:
        origin(name)
