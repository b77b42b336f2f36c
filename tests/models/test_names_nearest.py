"""What is suggested for a name that is none."""

from __future__ import annotations

import pytest

from rebinding.learned.shelf import learned_models
from rebinding.models import ALIASES, origin
from rebinding.models.errors import UnknownName
from rebinding.models.names import HUB_IDS, names_by_prefix, names_without_prefix, nearest


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
    names = {
        *names_without_prefix().values(),
        *(name for names in names_by_prefix().values() for name in names.values()),
    }
    assert {
        *ALIASES,
        *HUB_IDS,
        *(f"shape:{alias}" for alias in ALIASES),
        *(learned.name for learned in learned_models()),
    } <= names
    assert {"planted:recency", "planted:global@gemma2", "planted:pointer+missing@llama"} <= names
    for name in names:
        origin(name)


@pytest.mark.parametrize(
    "name", ["planted:nope", "planted:pointer+nope", "planted:pointer@nope", "planted:", "learned:x"]
)
def test_refusal_of_a_builtin_name_starts_with_the_name(name: str) -> None:
    with pytest.raises(UnknownName, match=f"^{name.replace('+', '[+]')}"):
        origin(name)
