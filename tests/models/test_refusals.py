"""What cannot be studied exactly is refused at load, each for its own reason and with what to do about it.

Folders that mean harm, or lie, are in `tests/oracles/faults/test_hostile_models.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, ByT5Tokenizer, PreTrainedModel

from rebinding.models import ModelError, check, checkpoint, errors, load
from rebinding.surgery import derivation
from rebinding.surgery.attention import NAME
from tests.families.models import SIZES, tiny
from tests.models import census
from tests.models.folders import ROWS, change_config, save, save_tiny

SMALL = SIZES | {"vocab_size": ROWS}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_experts": 2}


def architecture(kind: str, **settings: Any) -> Callable[[Path], Path]:
    """A small random model of any family, on the sizes that its config knows."""

    def make(folder: Path) -> Path:
        defaults = vars(AutoConfig.for_model(kind))
        config = AutoConfig.for_model(kind, **{k: v for k, v in SMALL.items() if k in defaults}, **settings)
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        return save(model, folder)

    return make


def slow_tokenizer(folder: Path) -> None:
    save_tiny(folder)
    (folder / "tokenizer.json").unlink()
    ByT5Tokenizer().save_pretrained(folder)


def deleted(pattern: str) -> Callable[[Path], None]:
    """A folder without the files of a pattern."""

    def delete(folder: Path) -> None:
        for path in save_tiny(folder).glob(pattern):
            path.unlink()

    return delete


def cut_short(folder: Path) -> None:
    path = save_tiny(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def delete_shard(folder: Path) -> None:
    save(tiny("llama"), folder, max_shard_size="20KB")
    sorted(folder.glob("*.safetensors"))[1].unlink()


def configured(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(save_tiny(folder), **changes)


@dataclass(frozen=True)
class Refusal:
    """How a folder is damaged, and what its refusal is and says."""

    make: Callable[[Path], object]
    error: type[ModelError]
    message: str


UNFIT, UNSUPPORTED = errors.UnfitTokenizer, errors.UnsupportedArchitecture
CASES = {
    "no model": Refusal(lambda folder: folder.mkdir(), errors.UnknownName, "has no config.json"),
    "broken config": Refusal(
        lambda folder: (save_tiny(folder) / "config.json").write_text("{"), errors.DamagedModel, "is not JSON"
    ),
    "quantised": Refusal(
        configured(quantization_config={"quant_method": "gptq"}), errors.UnsupportedFormat, "holds gptq weights"
    ),
    "slow tokenizer": Refusal(slow_tokenizer, UNFIT, "has no fast tokenizer"),
    "no tokenizer": Refusal(deleted("tokenizer*"), UNFIT, "holds no tokenizer"),
    "other tokenizer": Refusal(
        lambda folder: save_tiny(folder, vocab_size=101), UNFIT, "embeddings for tokens 0 to 100. It is another model's"
    ),
    "no chat form": Refusal(deleted("chat_template.jinja"), UNFIT, "pass form='raw'"),
    "truncated": Refusal(cut_short, errors.DamagedModel, r"is truncated or damaged \("),
    "lost shard": Refusal(delete_shard, errors.DamagedModel, "lacks model-00002-of-"),
    "biases in the checkpoint which the configuration says are not there": Refusal(
        configured(attention_bias=False),
        errors.DamagedModel,
        "hold, against config.json, model.layers.0.self_attn.k_proj.bias",
    ),
    "unknown family": Refusal(configured(model_type="nosuch"), UNSUPPORTED, "transformers cannot read"),
    "no causal model": Refusal(configured(model_type="t5"), UNSUPPORTED, "does not offer as a causal"),
    "bloom": Refusal(architecture("bloom", n_layer=2, n_head=2), UNSUPPORTED, "BloomForCausalLM does not let"),
    "mpt": Refusal(architecture("mpt", n_layers=2, n_heads=2, d_model=24), UNSUPPORTED, "Mpt.* does not let"),
    "biased attention": Refusal(
        lambda folder: save(census.build("inkling_text"), folder), UNSUPPORTED, "InklingAttention hands position_bias"
    ),
    "gemma without causal mask": Refusal(
        lambda folder: save_tiny(folder, "gemma3", use_bidirectional_attention=True),
        errors.FailedSelfCheck,
        "Gemma3ForCausalLM looks at the future",
    ),
    "llama without causal mask": Refusal(
        configured(is_causal=False), errors.FailedSelfCheck, "LlamaForCausalLM looks at the future"
    ),
    "gated output": Refusal(architecture("bitnet"), UNSUPPORTED, "does not read what attention returns"),
    "unnamed parts": Refusal(architecture("camembert", is_decoder=True), UNSUPPORTED, "keeps no list of layers"),
    "hybrid": Refusal(
        architecture("minimax", **EXPERTS, layer_types=["full_attention", "linear_attention"] * 2),
        UNSUPPORTED,
        "MiniMaxAttention in layer 0, MiniMaxLightningAttention in layer 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_damaged_folder_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.make(tmp_path / "model")
    with pytest.raises(ModelError) as excinfo:
        load(str(tmp_path / "model"))
    assert excinfo.type is case.error
    assert [case for case in CASES if re.search(CASES[case].message, str(excinfo.value))] == [name]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "bf16"}, errors.UnfitDevice, "did you mean bfloat16"),
        ({"dtype": "int8"}, errors.UnfitDevice, "none of float32, bfloat16, float16"),
        ({"device": "gpu"}, errors.UnfitDevice, "write auto, cpu, cuda"),
        ({"device": "meta"}, errors.UnfitDevice, "models run on cpu, cuda or mps"),
        ({"form": "claude"}, errors.UnfitTokenizer, "the forms are raw, gemma, llama3, template"),
    ],
)
def test_options_are_checked_before_anything_is_read(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load("google/gemma-2-9b-it", **options)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:3", {"": 0}):
        with pytest.raises(errors.UnfitDevice, match="sees 0 CUDA devices"):
            load("gemma2-9b", device=device)


def test_gpus_without_room_are_refused_and_not_helped_out_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = AutoModelForCausalLM.from_pretrained

    def spread(*args: Any, **options: Any) -> Any:
        model, report = opened(*args, **options)
        model.hf_device_map = {"model": 0, "lm_head": "cpu"}
        return model, report

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spread)
    with pytest.raises(errors.UnfitDevice, match="does not fit into the GPUs"):
        checkpoint.open_model(save_tiny(tmp_path), dtype="float32", device="cpu")


def test_layers_called_with_a_tensor_that_cannot_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the mask a keyword that nobody knows, a replay would not know how to cut it."""
    monkeypatch.setattr("rebinding.surgery.recording.LAYER_ARGUMENTS", ("position_embeddings",))
    save_tiny(tmp_path / "model")
    with pytest.raises(errors.UnsupportedArchitecture, match="cannot be run one by one"):
        load(str(tmp_path / "model"), device="cpu")


def test_a_refused_model_is_left_without_hooks() -> None:
    model = tiny("gemma3", use_bidirectional_attention=True)
    with pytest.raises(errors.FailedSelfCheck, match="looks at the future"):
        check(model)
    assert model.config._attn_implementation == NAME
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_layers_called_by_position_are_not_refused(tmp_path: Path) -> None:
    """GPT-2 hands its layers the mask by position; fused projections are no obstacle either."""
    folder = architecture("gpt2", n_embd=24, n_head=2, n_layer=2)(tmp_path)
    assert load(str(folder), device="cpu").anatomy.branches is not None


def test_layers_that_drop_keywords_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """StableLM's layers do; its line in the table of families says so."""
    monkeypatch.setattr(derivation, "FAMILIES", {})
    folder = architecture("stablelm")(tmp_path)
    with pytest.raises(errors.UnsupportedArchitecture, match=r"StableLm.* do not pass their keywords on"):
        load(str(folder), device="cpu")
