"""A tiny random model that knows the words of the embedded tokenizer, and an encoder for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.prompts import Encoder
from tests.families.models import Family, tiny

WORDS = len(build_tokenizer())


def model(family: Family = "llama", **overrides: Any) -> PreTrainedModel:
    """A model of four layers whose vocabulary is the embedded tokenizer's, for prompts of any length used here."""
    window = {} if family == "llama" else {"sliding_window": 128}
    return tiny(family, **{"vocab_size": WORDS, "max_position_embeddings": 128, **window, **overrides})


def encoder() -> Encoder:
    return Encoder(build_tokenizer())


def save(folder: Path) -> Path:
    """The model and its tokenizer as a folder."""
    model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
