"""What may change around a run: other threads, training mode, autocast, the attention function, earlier prompts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from rebinding.models.selfcheck import check
from rebinding.surgery import Edit, Read, SurgeryError, TorchSurgeon
from rebinding.surgery.calling import Weights
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.families.models import tiny, tokens
from tests.surgery.small_edits import make_surgeon

LAST = 12
TOLERANCE = 1e-5
"""Logits below ten in float32, a few units of 1.2e-7 of them a layer."""


@pytest.fixture
def surgeon() -> TorchSurgeon:
    return make_surgeon("llama")


def edited(surgeon: TorchSurgeon | NNsightSurgeon, size: float) -> Tensor:
    """Logits with noise of a size in the residual stream of layer 1."""
    edit = Edit("resid", torch.tensor(size), at=[3], layer=1, mode="add")
    return surgeon.run(surgeon.record(tokens("llama")), [edit], [Read("logits", at=[LAST])])[0]


@pytest.mark.parametrize("other", ["torch", "nnsight"])
def test_threads_on_one_model_do_not_see_each_others_edits(surgeon: TorchSurgeon, other: str) -> None:
    second = TorchSurgeon(surgeon.model, surgeon.anatomy) if other == "torch" else None
    second = second or NNsightSurgeon(surgeon.model, surgeon.anatomy)
    sizes = [0.5 + number for number in range(4)]
    expected = [edited(surgeon, size) for size in sizes]
    assert float((expected[0] - expected[1]).abs().max()) > 100 * TOLERANCE
    wrong: list[float] = []

    def work(own: TorchSurgeon | NNsightSurgeon) -> None:
        for _ in range(4):
            for size, logits in zip(sizes, expected, strict=True):
                if not torch.allclose(edited(own, size), logits, rtol=0, atol=TOLERANCE):
                    wrong.append(size)

    threads = [threading.Thread(target=work, args=(own,)) for own in (surgeon, second, surgeon)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_training_mode_is_refused(surgeon: TorchSurgeon) -> None:
    surgeon.model.train()
    with pytest.raises(SurgeryError, match=r"training mode.*model\.eval\(\)"):
        edited(surgeon, 1.0)
    surgeon.model.eval()
    surgeon.model.get_submodule("model.layers.1.self_attn").train()  # its dropout alone
    with pytest.raises(SurgeryError, match="training mode"):
        surgeon.record(tokens("llama"))


def test_autocast_is_off_in_a_run(surgeon: TorchSurgeon) -> None:
    expected = edited(surgeon, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(edited(surgeon, 1.0), expected, rtol=0, atol=TOLERANCE)
        assert torch.is_autocast_enabled("cpu")


def test_another_attention_function_is_replaced(surgeon: TorchSurgeon) -> None:
    expected = edited(surgeon, 1.0)
    surgeon.model.set_attn_implementation("sdpa")
    pattern = Edit("pattern", torch.zeros(1, 1, 1, 1), at=[LAST], head=[(1, 0), (1, 1), (1, 2)])
    read = Read("logits", at=[LAST])
    without = surgeon.run(surgeon.record(tokens("llama")), [pattern], [read])[0]
    assert torch.allclose(edited(surgeon, 1.0), expected, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(without, expected, rtol=0, atol=100 * TOLERANCE)


SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def phi3() -> PreTrainedModel:
    """A tiny Phi-3 with other angles for prompts of more than 64 tokens."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **factors}
    return Phi3ForCausalLM(Phi3Config(**SIZES, max_position_embeddings=256, rope_parameters=rope))


def dynamic_llama() -> PreTrainedModel:
    """A tiny Llama whose angles grow with the longest prompt so far, from 32 tokens on."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=32, rope_parameters=rope))


@pytest.mark.parametrize("make", [phi3, dynamic_llama])
def test_angles_do_not_depend_on_earlier_prompts(make: Callable[[], PreTrainedModel]) -> None:
    """Each prompt equals a forward of a model that has seen no other."""
    torch.manual_seed(0)
    model = make().eval()
    unused = deepcopy(model)
    unused.set_attn_implementation("eager")
    used = deepcopy(unused)
    surgeon = TorchSurgeon(model, check(model))
    for length in (20, 90, 50):
        prompts = torch.randint(5, 200, (3, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            own = deepcopy(unused)(prompts).logits[:, -1:]
            after_others = used(prompts).logits[:, -1:]
        read = Read("logits", at=[length - 1])
        (logits,) = surgeon.run(surgeon.record(prompts), [], [read])
        assert torch.allclose(logits, own, rtol=0, atol=TOLERANCE)
    if make is dynamic_llama:  # the library's own forward does depend on them
        assert not torch.allclose(after_others, own, rtol=0, atol=100 * TOLERANCE)


CHANGES: dict[str, Callable[[PreTrainedModel], object]] = {
    "one matrix": lambda model: _scale(model.get_submodule("model.layers.1.mlp.up_proj").weight),
    "by data": lambda model: model.get_submodule("model.layers.1.mlp.up_proj").weight.data.mul_(1.01),
    "another storage": lambda model: _replace(model, deepcopy(model.get_submodule("model.layers.0.mlp.up_proj"))),
    "another parameter": lambda model: setattr(
        model.get_submodule("model.layers.0.mlp.up_proj"),
        "weight",
        torch.nn.Parameter(model.get_submodule("model.layers.1.mlp.up_proj").weight.detach()),
    ),
    "a hook": lambda model: model.get_submodule("model.layers.1").register_forward_hook(lambda *_: None),
}


def _scale(weight: Tensor) -> None:
    with torch.no_grad():
        weight *= 1.01


def _replace(model: PreTrainedModel, module: torch.nn.Module) -> None:
    weight = model.get_submodule("model.layers.0.mlp.up_proj").weight
    weight.data = module.weight.data


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed(surgeon: TorchSurgeon, change: str) -> None:
    weights = Weights.of(surgeon.model)
    edited(surgeon, 1.0)
    weights.check(surgeon.model)  # a run changes nothing
    CHANGES[change](surgeon.model)
    with pytest.raises(SurgeryError, match=r"changed after this recording was made.*record the prompts again"):
        weights.check(surgeon.model)


def test_a_causal_mask_that_is_missing_is_noticed() -> None:
    """The probe of causality compares prompts of one length, and still finds a look at later tokens."""
    model = tiny("llama")
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    decoder = model.get_submodule("model")
    decoder.register_forward_pre_hook(partial(_all_visible), with_kwargs=True)
    with pytest.raises(ValueError, match="looks at the future"):
        check(model)


def _all_visible(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    ids = kwargs["input_ids"]
    assert isinstance(ids, Tensor)
    return args, {**kwargs, "attention_mask": torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])}
