"""A model in memory: the numbers of one that was loaded, left as it was found, and refused for the same reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rebinding
from rebinding import Circuit, CircuitError, Edit, JudgeError, Model, ModelError, Read, SurgeryError
from rebinding.planted import build
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery.attention import attention_of
from tests.families.models import tiny, tokens

Found = tuple[str, tuple[bool, ...], int]


def found(model: Any) -> Found:
    """What a user would find changed: attention, training flags, hooks."""
    modules = tuple(model.modules())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)
    return attention_of(model), tuple(module.training for module in modules), hooks


def model_in_memory(attention: str = "sdpa", **overrides: Any) -> Any:
    """A small random model as transformers loads one: on its default attention, with gradients."""
    model = tiny("llama", **{"vocab_size": 256, **overrides}).requires_grad_(True)
    model.set_attn_implementation(attention)
    model.register_forward_hook(lambda *_: None)
    return model


def prompts_of(model: Model) -> rebinding.Prompts:
    return model.prompts(tokens("llama", n=2), positions={"early": 3}, answers=[[11, 50], [50, 7]])


def test_it_is_the_model_that_load_gives() -> None:
    """Same numbers, heads, fingerprint and dtype; on its own attention before and after."""
    plant = build("pointer")
    plant.model.set_attn_implementation("sdpa")
    wrapped, loaded = rebinding.wrap(plant.model, plant.tokenizer), rebinding.load("planted:pointer")
    design = rebinding.design("published", loaded)
    edit, read = Edit("z", 0.0, head=(5, 5), at="readout"), Read("answers")  # a head of group B, without which it errs
    values = []
    for model in (wrapped, loaded):
        recording = model.record(model.stories(design, 3))
        values.append((recording.read(read)[0], recording.run(edit, read)[0]))
    for own, other in zip(*values, strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-4)  # logits up to 30: ten roundings of float32 are 2e-5
    assert float((values[0][0] - values[0][1]).abs().max()) > 1
    assert wrapped.loaded.fingerprint == loaded.loaded.fingerprint
    assert (wrapped.heads, wrapped.loaded.dtype) == (loaded.heads, loaded.loaded.dtype)
    assert attention_of(plant.model) == "sdpa"


def test_the_model_is_left_as_it_was_found() -> None:
    """After the check, after runs, and after a run that is refused; no value carries a gradient."""
    model = model_in_memory()
    before = found(model)
    wrapped = rebinding.wrap(model, build_tokenizer())
    assert found(model) == before
    recording = wrapped.record(prompts_of(wrapped))
    (logits,) = recording.run(Edit("z", 0.0, head=(1, 2), at="early"), Read("logits", at=-1))
    assert found(model) == before
    assert not logits.requires_grad
    with pytest.raises(SurgeryError):
        recording.run(Edit("z", 0.0, head=(99, 0), at="early"), Read("logits"))
    assert found(model) == before
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_refused_model_is_left_as_it_was_found() -> None:
    model = model_in_memory()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.fill_(torch.nan)
    model.train()
    before = found(model)
    with pytest.raises(ModelError, match="NaN"):
        rebinding.wrap(model, build_tokenizer(), name="mine")
    assert found(model) == before


def test_a_model_in_training_mode_can_be_wrapped_and_not_run() -> None:
    model = model_in_memory().train()
    before = found(model)
    wrapped = rebinding.wrap(model, build_tokenizer())
    assert found(model) == before
    with pytest.raises(SurgeryError, match=r"call model\.eval\(\) first"):
        wrapped.record(prompts_of(wrapped))
    model.eval()
    wrapped.record(prompts_of(wrapped))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.model.layers[0].self_attn.q_proj.weight.mul_(1.5),
        lambda model: model.model.layers[0].mlp.register_forward_hook(lambda *_: None),
    ],
    ids=["weights", "hooks"],
)
def test_a_change_between_recording_and_run_is_noticed(change: Callable[[Any], Any]) -> None:
    model = model_in_memory()
    wrapped = rebinding.wrap(model, build_tokenizer())
    recording = wrapped.record(prompts_of(wrapped))
    with torch.no_grad():
        change(model)
    with pytest.raises(SurgeryError, match="record the prompts again"):
        recording.run(Edit("z", 0.0, head=(1, 2), at="early"), Read("logits"))


def test_a_circuit_belongs_to_the_weights_as_they_are(tmp_path: Path) -> None:
    """The owner of the model may train it on; its earlier circuit is then another model's."""
    model = model_in_memory()
    wrapped = rebinding.wrap(model, build_tokenizer())
    wrapped.save(Circuit(()), tmp_path / "circuit.json")
    assert wrapped.load_circuit(tmp_path / "circuit.json") == Circuit(())
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(CircuitError):
        wrapped.load_circuit(tmp_path / "circuit.json")


def test_its_own_precision_is_kept() -> None:
    model = model_in_memory().bfloat16()
    wrapped = rebinding.wrap(model, build_tokenizer())
    assert wrapped.loaded.dtype == "bfloat16"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def mixed() -> Any:
    model = model_in_memory()
    model.lm_head.bfloat16()
    return model


@pytest.mark.parametrize(
    ("make", "tokenizer", "words"),
    [
        (lambda: "gpt2", build_tokenizer, "got a str"),
        (lambda: nn.Linear(2, 2), build_tokenizer, r"got a Linear.*merge_and_unload\(\)"),
        (model_in_memory, lambda: "gpt2", "give its fast tokenizer .*; got a str"),
        (mixed, build_tokenizer, "weights in bfloat16, float32; give a model whose weights all have one"),
        (lambda: model_in_memory(vocab_size=64), build_tokenizer, "embeddings for tokens 0 to 63"),
    ],
    ids=["name", "module", "tokenizer", "dtypes", "vocabulary"],
)
def test_what_is_no_model_is_refused(make: Callable[[], Any], tokenizer: Callable[[], Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        rebinding.wrap(make(), tokenizer())


def test_a_model_without_a_name_is_not_judged() -> None:
    """Claims run in a process of their own, which loads models by name."""
    wrapped = rebinding.wrap(model_in_memory(), build_tokenizer())
    with pytest.raises(JudgeError, match=r"LlamaForCausalLM in memory cannot be loaded.*save_pretrained\(FOLDER\)"):
        rebinding.judge(wrapped)
