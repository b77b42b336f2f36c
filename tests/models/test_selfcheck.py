"""The self-check notices when what we believe about a model is false, and allows for rounding and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from rebinding.models import ALIASES, check, errors, replays, selfcheck, shape_config, verify
from rebinding.models.probe import WORDS, Allowance, draw_tokens, forward, in_float32, raise_weights
from rebinding.models.shapes import skeleton
from rebinding.planted import ARCHITECTURES, MECHANISMS
from rebinding.surgery import Anatomy, TorchSurgeon, attention, derive
from rebinding.surgery.anatomy import Branches, Mask, Projection
from tests.arithmetic.rounding import rounding
from tests.everyday import sampled
from tests.families.models import SPECIAL, USUAL, Family, changed, tiny
from tests.planted.runs import plant


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in ("mistral", "gemma2", "gemma3_multimodal")),
        *(("gemma3", torch.bfloat16), ("llama", torch.float16)),
    ],
)
def test_models_that_we_understand_pass_with_the_derived_anatomy(family: Family, dtype: torch.dtype) -> None:
    model = tiny(family)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    anatomy = check(model)
    assert anatomy == derive(model)
    assert anatomy.branches is not None
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", ["gemma2", "qwen3"])
def test_surgeon_matches_the_model_in_16_bits_on_a_cpu(family: Family) -> None:
    """The allowance of the check is for other kernels; on one and the same there is nothing to allow for."""
    model = tiny(family).to(torch.bfloat16)
    anatomy = derive(model)
    tokens = draw_tokens(model, anatomy)
    expected = forward(model, anatomy, tokens).logits
    attention.install(model)
    assert torch.equal(expected, forward(model, anatomy, tokens).logits)


PRE = Branches("input_layernorm", "", "post_attention_layernorm", "")
POST = Branches("", "post_attention_layernorm", "", "input_layernorm")
PARALLEL = replace(PRE, is_parallel=True)


BELIEFS: dict[str, tuple[Family, dict[str, Any], str]] = {
    "no window": ("mistral", {"mask": Mask()}, "does not attend to all earlier tokens"),
    "a longer window": ("gemma2", {"mask": Mask("sliding", 6)}, "a sliding window of 6"),
    "windows at other layers": ("gemma3", {"mask": Mask("sliding", 5)}, "layer 2 does not attend"),
    "other slices": (
        "llama",
        {"k": Projection("self_attn.v_proj", 0, 20, 20), "v": Projection("self_attn.k_proj", 0, 20, 20)},
        "the k of layer 0 is not the slice of self_attn.v_proj",
    ),
    "a wider projection": (
        "llama",
        {"q": Projection("self_attn.q_proj", 0, 40, 40)},
        "puts out 60 numbers a token",
    ),
    "another norm before the head": ("llama", {"final_norm": "model.layers.0.input_layernorm"}, "its logits are not"),
    "no soft cap": ("gemma2", {"logit_softcap": None}, "its logits are not"),
    "a factor": ("qwen3", {"logit_factor": 1.001}, "its logits are not"),
    "z behind the projection": ("llama", {"output": "mlp"}, "does not read what attention returns"),
}


@pytest.mark.parametrize("belief", BELIEFS)
def test_a_false_anatomy_is_noticed(belief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, wrong, message = BELIEFS[belief]
    monkeypatch.setattr(selfcheck, "derive", lambda model: changed(derive(model), **wrong))
    with pytest.raises(errors.UnsupportedArchitecture, match=message):
        check(tiny(family))


def test_queries_taken_for_keys_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = {"q": Projection("self_attn.k_proj", 0, 60, 60), "k": Projection("self_attn.q_proj", 0, 60, 60)}
    monkeypatch.setattr(selfcheck, "derive", lambda model: changed(derive(model), **swapped))
    with pytest.raises(errors.UnsupportedArchitecture, match="the q of layer 0 is not the slice"):
        check(tiny("llama", num_key_value_heads=6))


@pytest.mark.parametrize(
    ("family", "wrong", "is_known"),
    [
        *(("llama", POST, True), ("llama", PARALLEL, True), ("gemma2", PRE, True), ("gemma2", POST, True)),
        *(("llama", POST, False), ("gemma2", PRE, False)),
    ],
)
def test_a_false_norm_layout_is_corrected_or_given_up(
    family: Family, wrong: Branches, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selfcheck, "derive", lambda model: replace(derive(model), branches=wrong))
    if not is_known:
        monkeypatch.setattr(verify, "layouts", lambda layer, text: iter(()))
    assert check(tiny(family)).branches == (derive(tiny(family)).branches if is_known else None)


def _without_softcap(*args: Any, softcap: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    return attention.attention(*args, **options)


def _slightly_scaled(*args: Any, scaling: float, **options: Any) -> tuple[Tensor, Tensor]:
    return attention.attention(*args, scaling=scaling * (1 + 2**-8), **options)


@pytest.mark.parametrize(
    ("attention_function", "dtype"),
    [(_without_softcap, torch.float32), (_slightly_scaled, torch.float32), (_slightly_scaled, torch.bfloat16)],
)
def test_an_attention_that_is_a_little_different_is_noticed(
    attention_function: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "register", lambda: AttentionInterface.register(attention.NAME, attention_function))
    try:
        with pytest.raises(errors.FailedSelfCheck, match="the residual stream differs by"):
            check(tiny("gemma2").to(dtype))
    finally:
        monkeypatch.undo()
        attention.register()


def test_a_mask_that_leaks_at_one_layer_is_noticed() -> None:
    model = tiny("llama")
    layer = model.model.layers[2]

    def leak(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": torch.zeros_like(kwargs["attention_mask"])}

    layer.register_forward_pre_hook(leak, with_kwargs=True)
    with pytest.raises(errors.FailedSelfCheck, match="looks at the future"):
        check(model)


def test_parts_that_are_not_connected_are_named() -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
    with pytest.raises(
        errors.FailedSelfCheck, match="q, k, v, q_rot, k_rot, v_seen, scores, pattern, z at layers 0, 2, 3 "
    ):
        check(model)


@pytest.mark.parametrize("site", ["resid", "k", "mlp_out"])
def test_a_surgeon_that_forgets_a_site_is_noticed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TorchSurgeon.run

    def forgetful(self: TorchSurgeon, recording: Any, edits: Any, *args: Any, **options: Any) -> Any:
        return run(self, recording, [edit for edit in edits if edit.site != site], *args, **options)

    monkeypatch.setattr(TorchSurgeon, "run", forgetful)
    with pytest.raises(errors.FailedSelfCheck, match=f"edits of {site} at layers 0, 2, 3 "):
        check(tiny("gemma3"))


def test_the_probe_avoids_special_tokens_and_reaches_past_windows() -> None:
    model = tiny("gemma3_multimodal", sliding_window=120, max_position_embeddings=300)
    anatomy: Anatomy = derive(model)
    tokens = draw_tokens(model, anatomy)
    assert tokens.shape == (1, 122)
    assert draw_tokens(tiny("llama"), derive(tiny("llama"))).shape == (1, 64)  # it knows no more positions
    assert not set(tokens.unique().tolist()) & set(SPECIAL[:3])


def test_levels_are_checked_before_the_model() -> None:
    wrong: Any = "certified"
    with pytest.raises(ValueError, match="there is no level 'certified'; the levels are load, certify"):
        check(tiny("llama"), wrong)


# Rounding: far less than what claims are judged by

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
@pytest.mark.parametrize("family", sampled(USUAL, "gemma3"))
def test_ten_units_in_the_last_place_are_not_refused(family: Family) -> None:
    model = tiny(family)
    assert check(model) == derive(model)


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES))
def test_nor_are_they_on_planted_models(architecture: str) -> None:
    check(plant(f"pointer@{architecture}").model)


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES, "gemma2"))
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


@pytest.mark.parametrize("family", sampled(USUAL, "gemma2", "qwen3"))
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
