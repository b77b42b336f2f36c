"""A refusal says first what the model does, in the words of the field."""

from __future__ import annotations

import pytest

from rebinding.models import ModelError, errors
from rebinding.models.errors import SIGNS, find_reason
from rebinding.models.selfcheck import check
from tests.models.census import build
from tests.models.census_outcomes import read_table
from tests.surgery.models import FAMILIES, Family, tiny

REASONS: dict[str, tuple[type[ModelError], str]] = {
    "mamba": (errors.UnsupportedArchitecture, "MambaForCausalLM mixes tokens by state-space layers (MambaBlock). "),
    "rwkv": (errors.UnsupportedArchitecture, "RwkvForCausalLM mixes tokens by recurrent layers (RwkvBlock). "),
    "falcon_h1": (
        errors.UnsupportedArchitecture,
        "FalconH1ForCausalLM mixes tokens by state-space layers (FalconH1Mixer) beside attention. ",
    ),
    "lfm2": (
        errors.UnsupportedArchitecture,
        "Lfm2ForCausalLM mixes neighbouring tokens by convolutions (Lfm2ShortConv) beside attention. ",
    ),
    "deepseek_v3": (errors.UnsupportedArchitecture, "DeepseekV3ForCausalLM keeps the keys and values of all heads in"),
    "bitnet": (errors.UnsupportedArchitecture, "BitNetForCausalLM norms the outputs of all heads together. "),
    "afmoe": (errors.UnsupportedArchitecture, "AfmoeForCausalLM multiplies the outputs of heads by a gate. "),
    "bert": (errors.UnsupportedArchitecture, "BertLMHeadModel is built like BERT, an encoder. "),
    "bloom": (errors.UnsupportedArchitecture, "BloomForCausalLM computes attention in code of its own, "),
}


@pytest.mark.parametrize("kind", REASONS)
def test_refusal_begins_with_the_reason(kind: str) -> None:
    """What the check missed comes after it, and then what to do."""
    error, words = REASONS[kind]
    with pytest.raises(error) as refusal:
        check(build(kind))
    assert type(refusal.value) is error
    assert str(refusal.value).startswith(words)
    assert len(str(refusal.value)) > len(words) + 50


def test_supported_families_have_no_sign() -> None:
    """If one is refused, its linear attention is not why."""
    assert find_reason(build("qwen3_next")) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_models_have_no_sign(family: Family) -> None:
    assert find_reason(tiny(family)) is None


def test_every_sign_explains_a_refusal_of_the_census() -> None:
    """A sign that explains nothing is out of date."""
    reasons = [outcome.reason for outcome in read_table().outcomes.values() if outcome.status == "refused"]
    starts = [reason.partition(" (")[0] for reason in SIGNS.values()]
    assert [start for start in starts if not any(reason.startswith(start) for reason in reasons)] == []
