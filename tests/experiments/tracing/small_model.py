"""A random model that reads real prompts: the tokenizer of the reference pack, hostile weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from rebinding.models import LoadedModel
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import Design, design
from rebinding.task.prompts import Encoder
from tests.families.models import Family, tiny

TOKENIZER = Path(__file__).parents[2] / "reference" / "llama-tiny" / "model"


@cache
def encoder() -> Encoder:
    return Encoder(AutoTokenizer.from_pretrained(TOKENIZER), "raw")


@cache
def model(family: Family = "llama") -> PreTrainedModel:
    return tiny(family, vocab_size=len(encoder().tokenizer), max_position_embeddings=128)


def surgeon(family: Family = "llama") -> TorchSurgeon:
    return TorchSurgeon(model(family), derive(model(family)))


def plan(**options: Any) -> Design:
    return design("published", tokenizer=encoder().tokenizer, **options)


def loaded_model() -> LoadedModel:
    """The model as a bench takes it."""
    tokenizer, small = encoder().tokenizer, model()
    return LoadedModel(
        "small",
        lambda: small,
        tokenizer,
        derive(small),
        "raw",
        "float32",
        torch.device("cpu"),
        known_fingerprint="small",
    )
