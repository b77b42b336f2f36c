"""The three tokenizers, and how many examples the property tests try.

`HYPOTHESIS_PROFILE=nightly` tries 100,000 stories and prompts in all; the default profile tries 100 per test, the same
ones in every run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rebinding.task.prompts import Encoder

from .tokenizers import byte_level, sentence_pieces, word_level

NIGHTLY_TOTAL = 100_000
PROPERTIES = sum(path.read_text("utf-8").count("\n@given") for path in Path(__file__).parent.glob("test_*.py"))
"""How many property tests this folder has."""

settings.register_profile("everyday", max_examples=100, deadline=None, derandomize=True)
settings.register_profile(
    "nightly",
    max_examples=-(-NIGHTLY_TOTAL // PROPERTIES),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

MAKERS = {"words": word_level, "bytes": byte_level, "pieces": sentence_pieces}


@pytest.fixture(scope="session", params=list(MAKERS))
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Each of the three kinds of tokenizer, in the chat form that fits it."""
    return Encoder(MAKERS[request.param]())
