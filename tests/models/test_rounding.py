"""What rounding may do is allowed, and it is far less than what claims are judged by."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from rebinding.models import ALIASES, check, replays, selfcheck, shape_config
from rebinding.models.probe import WORDS, Allowance, draw_tokens, forward, in_float32, raise_weights
from rebinding.models.shapes import skeleton
from rebinding.planted import ARCHITECTURES, MECHANISMS
from rebinding.surgery import Anatomy, TorchSurgeon, derive
from tests.arithmetic.rounding import rounding
from tests.everyday import sampled
from tests.planted.runs import plant
from tests.surgery.models import FAMILIES, Family, tiny

COUNTS = 0.25
"""Logits by which claims call something a difference."""


@pytest.fixture(params=sampled(range(3)))
def noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward of the self-check rounds as yet another processor would, by up to ten units in the last place."""
    seeds = count(1000 * request.param)

    def noisily(act: Any) -> Any:
        def acting(*args: Any, **options: Any) -> Any:
            with rounding(next(seeds), ulps=10):
                return act(*args, **options)

        return acting

    monkeypatch.setattr(selfcheck, "forward", noisily(forward))
    monkeypatch.setattr(replays, "run_alone", noisily(replays.run_alone))
    monkeypatch.setattr(TorchSurgeon, "record", noisily(TorchSurgeon.record))
    monkeypatch.setattr(TorchSurgeon, "run", noisily(TorchSurgeon.run))


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize("family", sampled(FAMILIES, "llama", "gemma3"))
def test_ten_units_in_the_last_place_are_not_refused(family: Family) -> None:
    model = tiny(family)
    assert check(model) == derive(model)


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES))
def test_nor_are_they_on_planted_models(architecture: str) -> None:
    check(plant(f"pointer@{architecture}").model)


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES, "llama", "gemma2"))
@pytest.mark.parametrize("mechanism", sampled(MECHANISMS, "pointer", "lexical"))
def test_rounding_on_planted_models_is_a_hundredth_of_the_margin(mechanism: str, architecture: str) -> None:
    assert _logit_change(plant(f"{mechanism}@{architecture}").model) < COUNTS / 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_small_at_logits_of_thirty_in_every_dtype(dtype: torch.dtype) -> None:
    model = tiny("llama")
    tokens = draw_tokens(model, derive(model))
    model.lm_head.weight.mul_(30 / model(tokens).logits.abs().max())
    assert _logit_change(model.to(dtype)) < COUNTS / 100


@pytest.mark.parametrize("alias", ALIASES)
def test_rounding_at_paper_size_is_at_most_a_fifth(alias: str) -> None:
    """If the largest logit is 30, four standard deviations of a vocabulary's."""
    model = skeleton(shape_config(alias), torch.bfloat16, torch.device("meta"))
    assert Allowance.of_model(model, derive(model)).relative * 30 / 4 < COUNTS / 5


def _logit_change(model: Any) -> float:
    anatomy = derive(model)
    with in_float32(model, anatomy):
        logits = forward(model, anatomy, draw_tokens(model, anatomy)).logits
    assert logits.dtype == torch.float32
    return Allowance.of_model(model, anatomy).of(logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_raised_to_float32_a_model_computes_what_it_would_in_float32(family: Family) -> None:
    short, long = tiny(family), tiny(family)
    for weight in short.parameters():  # parameters alone: RoPE's frequencies stay exact
        weight.data = weight.data.bfloat16()
    long.load_state_dict(short.state_dict())
    anatomy = derive(short)
    tokens = draw_tokens(short, anatomy)
    with in_float32(short, anatomy):
        actual = forward(short, anatomy, tokens).logits
    assert Allowance.of_model(short, anatomy).near(actual, _starting_from_bfloat16(long, anatomy, tokens))
    assert {weight.dtype for weight in short.parameters()} == {torch.bfloat16}


def _starting_from_bfloat16(model: Any, anatomy: Anatomy, tokens: Tensor) -> Tensor:
    """As float32 computes it but for what comes before the layers: embeddings and RoPE's tables."""
    for weight in model.get_input_embeddings().parameters():
        weight.data = weight.data.bfloat16()
    with in_float32(model, anatomy):
        return forward(model, anatomy, tokens).logits


def test_weights_are_put_back_when_something_fails() -> None:
    model = tiny("llama").bfloat16()
    anatomy = derive(model)
    before = [weight.data_ptr() for weight in model.parameters()]

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle of a layer")

    handle = model.model.layers[2].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"), in_float32(model, anatomy):
        forward(model, anatomy, draw_tokens(model, anatomy))
    handle.remove()
    assert [weight.data_ptr() for weight in model.parameters()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_some_rows_of_a_large_head_are_raised() -> None:
    head = torch.nn.Linear(4, WORDS + 5, bias=False, dtype=torch.bfloat16)
    with raise_weights(head, WORDS):
        assert (head.weight.shape[0], head.weight.dtype) == (WORDS, torch.float32)
    assert (head.weight.shape[0], head.weight.dtype) == (WORDS + 5, torch.bfloat16)
