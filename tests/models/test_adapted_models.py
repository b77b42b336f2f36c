"""An adapter's folder as a model: its base with the adapter added, and nothing else changed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from rebinding.__main__ import main
from rebinding.learned import lora
from rebinding.learned.lora import Adapter, LoraPair
from rebinding.models import LoadedModel, errors, load
from rebinding.models.checkpoint import read_description
from rebinding.models.names import Origin, of_base, origin
from rebinding.study.model_spec import parse_model
from tests.learned.small import encoder
from tests.learned.small import model as small_model
from tests.models.folders import change_config, save, save_tiny
from tests.models.gguf_files import write as write_gguf

RANK, ALPHA = 4, 6.0


def write(folder: Path, base: str, loaded_model: LoadedModel) -> dict[str, Tensor]:
    """An adapter for a model in a folder; its addition to each weight, summed here rank by rank."""
    dice = torch.Generator().manual_seed(5)
    pairs, deltas = {}, {}
    for name, module in lora.targets(loaded_model.model).items():
        lora_a, lora_b = (
            (0.1 * torch.randn(*shape, generator=dice)).bfloat16()
            for shape in ((RANK, module.in_features), (module.out_features, RANK))
        )
        pairs[name] = LoraPair(lora_a, lora_b)
        terms = [torch.outer(lora_b[:, rank].double(), lora_a[rank].double()) for rank in range(RANK)]
        deltas[f"{name}.weight"] = ALPHA / RANK * torch.stack(terms).sum(dim=0)  # (out, in)
    lora.write(folder, Adapter(pairs, RANK, ALPHA, base))
    return deltas


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and its adapter, to be copied."""
    folder = tmp_path_factory.mktemp("saved")
    base = save(small_model(), folder / "base")
    write(folder / "adapter", str(base), load(str(base)))
    return folder


@pytest.fixture
def base(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "base", tmp_path / "base"))


@pytest.fixture
def adapter(saved: Path, base: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(saved / "adapter", tmp_path / "adapter"))
    change_config(folder, lora.CONFIG, base_model_name_or_path=str(base))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_the_bases_and_what_the_adapter_adds(dtype: str, base: Path, tmp_path: Path) -> None:
    """Positions are as exact as in any model: RoPE's frequencies are no weights. Rounded to eight bits they turn token
    60 by a tenth of a radian too much."""
    plain = load(str(base), dtype=dtype)
    deltas = write(tmp_path / "adapter", str(base), plain)
    adapted = load(str(tmp_path / "adapter"), dtype=dtype)
    check_positions(adapted, plain)
    for name, weight in adapted.model.named_parameters():
        before = plain.model.get_parameter(name)
        expected = before if name not in deltas else (before.double() + deltas[name].to(before.device)).to(before.dtype)
        # rounded once from float64; two orders of a sum of four there may fall on either side of a tie
        assert torch.allclose(weight, expected, rtol=torch.finfo(weight.dtype).eps, atol=0), name
        assert (name in deltas) != torch.equal(weight, before), name
    assert adapted.weights == f"{base}, with the adapter adapter"
    assert adapted.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    assert adapted.form == plain.form


def test_a_gguf_may_be_the_base(tmp_path: Path) -> None:
    base = tmp_path / "tiny.gguf"
    write_gguf(base, GGMLQuantizationType.Q8_0)
    plain = load(str(base), dtype="bfloat16")
    write(tmp_path / "adapter", str(base), plain)
    check_positions(load(str(tmp_path / "adapter"), dtype="bfloat16"), plain)


def check_positions(adapted: LoadedModel, plain: LoadedModel) -> None:
    frequencies = dict(plain.model.named_buffers())
    assert frequencies
    for name, buffer in adapted.model.named_buffers():
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, frequencies[name])
        assert not torch.equal(buffer, buffer.bfloat16().float())


def test_adapted_model_equals_the_merged_model(adapter: Path, tmp_path: Path) -> None:
    """One fingerprint, so that evidence of one is evidence of the other."""
    loaded_model = load(str(adapter))
    second = load(str(save(loaded_model.model, tmp_path / "merged")))
    assert second.fingerprint == loaded_model.fingerprint
    assert second.weights is None
    assert loaded_model.fingerprint != load(str(tmp_path / "base")).fingerprint


def test_chat_form_and_dtype_are_those_of_the_base(
    adapter: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_model(str(adapter)).dtype == "float32"
    change_config(base, dtype="bfloat16")
    assert parse_model(str(adapter)).dtype == "bfloat16"
    config, tokenizer = read_description(origin(str(adapter)))
    assert (config.num_hidden_layers, len(tokenizer)) == (4, len(encoder().tokenizer))
    assert main(["prompt", "--model", str(adapter)]) == 0
    expected_output = capsys.readouterr().out
    assert main(["prompt", "--model", str(base)]) == 0
    assert capsys.readouterr().out.replace(str(base), str(adapter)) == expected_output


def test_a_revision_is_one_of_a_base_on_the_hub(adapter: Path, base: Path) -> None:
    change_config(adapter, lora.CONFIG, revision="v1")
    assert of_base(origin(str(adapter))) == Origin("folder", str(base))
    change_config(adapter, lora.CONFIG, base_model_name_or_path="own/er")
    assert of_base(origin(str(adapter))) == Origin("hub", "own/er", None, "v1")


def changed_config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, lora.CONFIG, **changes)


def cut_weights(folder: Path) -> None:
    path = folder / lora.WEIGHTS
    path.write_bytes(path.read_bytes()[:200])


def config_text(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / lora.CONFIG).write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed_config(base_model_name_or_path=None), "has no base_model_name_or_path"),
        (changed_config(base_model_name_or_path="./nowhere"), r"no folder './nowhere'.*Write the base's folder"),
        (changed_config(base_model_name_or_path="planted:pointer"), "which is a planted and no base"),
        (changed_config(r=8), "which are not of rank 8"),
        (changed_config(r=0), "has no r that could be used: 0"),
        (changed_config(r=True), "has no r that could be used: True"),
        (changed_config(lora_alpha="six"), "has no lora_alpha that could be used: 'six'"),
        (changed_config(lora_alpha=math.nan), "has no lora_alpha that could be used: nan"),
        (changed_config(lora_alpha=math.inf), "has no lora_alpha that could be used: inf"),
        (changed_config(lora_alpha=10**400), "has no lora_alpha that could be used: 1000"),
        (changed_config(init_lora_weights="pissa_niter_4"), "asks for init_lora_weights"),
        (changed_config(init_lora_weights="lora_ga"), "asks for init_lora_weights, which is not read here"),
        (changed_config(target_parameters=["mlp.experts"]), "asks for target_parameters"),
        (changed_config(lora_bias=True), "asks for lora_bias"),
        (changed_config(trainable_token_indices=[3]), "asks for trainable_token_indices"),
        (lambda folder: (folder / lora.WEIGHTS).unlink(), "has no adapter_model.safetensors.*pickles are not opened"),
        (cut_weights, "is truncated or damaged"),
        (config_text("{"), "is not JSON"),
        (config_text("[]"), "holds no object but a list"),
    ],
)
def test_unsupported_adapters_are_refused(damage: Callable[[Path], object], message: str, adapter: Path) -> None:
    damage(adapter)
    with pytest.raises(errors.UnfitAdapter, match=message):
        load(str(adapter))


def test_an_adapter_of_another_or_of_an_unreachable_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    """Without a base the dtype of a request is still known."""
    changed_config(base_model_name_or_path="own/er")(adapter)
    with pytest.raises(errors.UnreachableModel, match="own/er"):
        load(str(adapter))
    changed_config(base_model_name_or_path=None)(adapter)
    assert parse_model(str(adapter)).dtype == "float32"
    changed_config(base_model_name_or_path=str(save_tiny(tmp_path / "other", hidden_size=48)))(adapter)
    with pytest.raises(errors.UnfitAdapter, match="the model's"):
        load(str(adapter))


def test_an_adapter_is_no_paper_model_and_stands_beside_no_model(adapter: Path, base: Path) -> None:
    with pytest.raises(errors.UnknownName, match="leave gemma2-9b= out"):
        load(f"gemma2-9b={adapter}")
    (base / lora.CONFIG).write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(errors.UnfitAdapter, match="holds an adapter beside a model"):
        load(str(base))
