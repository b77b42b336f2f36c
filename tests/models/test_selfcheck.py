"""The self-check notices when what we believe about a model is false: each test breaks one belief."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from rebinding.models import check, errors, selfcheck, verify
from rebinding.models.probe import draw_tokens, forward
from rebinding.surgery import Anatomy, TorchSurgeon, attention, derive
from rebinding.surgery.anatomy import Branches, Mask, Projection
from rebinding.surgery.sites import SITES
from tests.surgery.models import FAMILIES, SPECIAL, Family, changed, tiny


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, torch.float32) for family in FAMILIES), ("gemma3", torch.bfloat16), ("llama", torch.float16)],
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
    ("family", "wrong"), [("llama", POST), ("llama", PARALLEL), ("gemma2", PRE), ("gemma2", POST), ("qwen3", POST)]
)
@pytest.mark.parametrize("is_known", [True, False])
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
    [
        (_without_softcap, torch.float32),
        *((_slightly_scaled, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    ],
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


@pytest.mark.parametrize("site", [site for site in SITES if site != "logits"])
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
