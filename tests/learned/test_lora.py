"""Adapters: nothing at first, the same beside the weights and in them, and on disk what was in memory.

Of their options on disk those of a plain adapter pass; whatever else says something is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rebinding.learned import lora
from rebinding.learned.lora import Adapter, LoraPair
from tests.close import agree, is_changed
from tests.families.models import RandomModel, tiny
from tests.learned.small import model

IDS = torch.randint(3, 95, (2, 20), generator=torch.Generator().manual_seed(1))  # (prompt, token)


def random_adapter(base: Any, *, seed: int = 0, rounded: bool = False) -> Adapter:
    """An adapter that does something."""
    adapter = lora.new(base, rank=4, alpha=8, base="tiny", seed=seed)
    dice = torch.Generator().manual_seed(seed)
    stored = lora.STORED if rounded else torch.float32

    def random_like(like: Tensor) -> Tensor:
        return (0.3 * torch.randn(like.shape, generator=dice)).to(stored).float()

    return replace(
        adapter,
        pairs={name: LoraPair(random_like(pair.down), random_like(pair.up)) for name, pair in adapter.pairs.items()},
    )


@torch.no_grad()
def logits(network: Any) -> Tensor:
    out: Tensor = network(IDS, use_cache=False).logits  # (prompt, token, vocabulary)
    return out


def test_a_new_adapter_adds_nothing() -> None:
    network = model()
    plain = logits(network)
    with lora.attached(network, lora.new(network, rank=4, alpha=8, base="tiny", seed=0)):
        assert agree(logits(network), plain)


def test_separate_and_merged_adapters_are_equal() -> None:
    network = model()
    plain, adapter = logits(network), random_adapter(network)
    with lora.attached(network, adapter):
        attached_logits = logits(network)
    assert agree(logits(network), plain)  # detached
    lora.merge(network, adapter)
    assert is_changed(attached_logits, plain)
    assert agree(logits(network), attached_logits)


def test_gradients_reach_the_adapter_alone() -> None:
    network = model()
    adapter = lora.new(network, rank=4, alpha=8, base="tiny", seed=0)
    with lora.attached(network, adapter):
        network(IDS, use_cache=False).logits.square().mean().backward()
    assert all(float(pair.up.grad.abs().max()) > 0 for pair in adapter.pairs.values())  # type: ignore[union-attr]
    assert not any(weight.grad is not None for weight in network.parameters())


def test_the_lowest_layers_are_spared() -> None:
    deep = tiny("llama", num_hidden_layers=30)
    names = lora.targets(deep)
    assert {lora.layer_of(name) for name in names} == set(range(4, 30))
    assert len(names) == 26 * 4  # queries, keys, values, output


def test_a_model_without_the_modules_is_refused() -> None:
    with pytest.raises(ValueError, match="no modules called q_proj"):
        lora.targets(torch.nn.Linear(2, 2))


def test_read_as_written(tmp_path: Path) -> None:
    adapter = random_adapter(model(), rounded=True)
    lora.write(tmp_path, adapter)
    loaded = lora.read_adapter(tmp_path)
    assert (loaded.rank, loaded.alpha, loaded.base) == (4, 8, "tiny")
    assert set(loaded.pairs) == set(adapter.pairs)
    for name, pair in adapter.pairs.items():
        assert torch.equal(loaded.pairs[name].down.float(), pair.down)
        assert torch.equal(loaded.pairs[name].up.float(), pair.up)


def test_the_files_are_those_of_peft(tmp_path: Path) -> None:
    """The names that peft writes for `model.layers.0.self_attn.q_proj` (tests/real opens ours with peft itself)."""
    lora.write(tmp_path, random_adapter(model()))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert config["layers_to_transform"] == [0, 1, 2, 3]
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (4, 24)
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"].shape == (60, 4)


def changed(**entries: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / lora.CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / lora.WEIGHTS).unlink(), "has no adapter_model.safetensors"),
        (changed(peft_type="IA3"), "holds a IA3 adapter"),
        (changed(use_dora=True), "asks for use_dora"),
        (changed(bias="all"), "asks for bias"),
        (changed(use_bdlora={"nblocks": 2}), "asks for use_bdlora"),
        (changed(**{"later\x1b[31m": True}), r"asks for 'later\\x1b\[31m'"),
    ],
)
def test_adapters_with_other_arithmetic_are_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    lora.write(tmp_path, random_adapter(model()))
    damage(tmp_path)
    with pytest.raises(lora.AdapterError, match=message):
        lora.read_adapter(tmp_path)


def test_an_adapter_for_another_model_is_refused() -> None:
    adapter = random_adapter(model())
    lora.check_fits(model(), adapter)
    with pytest.raises(lora.AdapterError, match="which this model does not have"):
        lora.check_fits(tiny("llama", num_hidden_layers=3), adapter)
    with pytest.raises(lora.AdapterError, match="the model's"):
        lora.check_fits(tiny("llama", hidden_size=30), adapter)


def test_an_adapter_lies_where_its_model_does() -> None:
    """On `meta`, which is a device like any other: an adapter that stays on the CPU cannot be trained on a GPU."""
    network = model().to("meta")
    assert {tensor.device.type for tensor in lora.new(network, rank=4, alpha=8, base="tiny", seed=0).tensors()} == {
        "meta"
    }


def test_weights_do_not_hang_on_who_added_them() -> None:
    """Made in float64 and rounded once; of products in float32 every processor rounds its own way."""
    network, plain = model(), model()
    adapter = random_adapter(network)
    lora.merge(network, adapter)
    for name, pair in adapter.pairs.items():
        expected = plain.get_submodule(name).weight.double() + adapter.scale * (pair.up.double() @ pair.down.double())
        assert torch.equal(network.get_submodule(name).weight, expected.float())


def test_transposed_and_fused_projections_are_adapted() -> None:
    """GPT-2 stores its matrices transposed, and queries, keys and values in one: hooks and merge give the same."""
    network = RandomModel("gpt2").build()
    adapter = lora.new(network, rank=2, alpha=4, base="tiny", seed=0)
    assert {name.rpartition(".attn.")[2] for name in adapter.pairs} == {"c_attn", "c_proj"}
    dice = torch.Generator().manual_seed(1)
    for pair in adapter.pairs.values():
        torch.nn.init.normal_(pair.up.data, generator=dice)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        before = network(ids).logits
        with lora.attached(network, adapter):
            attached = network(ids).logits
        lora.merge(network, adapter)
        merged = network(ids).logits
    assert agree(merged, attached)
    assert is_changed(merged, before)


# fmt: off
PLAIN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "owner/name", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 32, "lora_bias": False, "lora_dropout": 0.05,
    "lora_ga_config": None, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None,
    "monteclora_config": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 16,
    "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"], "target_parameters": None,
    "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_bdlora": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False, "velora_config": None,
}
"""What peft 0.21.2 writes of a plain adapter."""
# fmt: on


def test_plain_peft_adapter_passes() -> None:
    assert lora.unsupported_options(PLAIN) == []


@pytest.mark.parametrize("value", [True, False, None, "gaussian", "orthogonal", "eva"])
def test_beginnings_that_leave_the_base_alone_pass(value: object) -> None:
    assert lora.unsupported_options({**PLAIN, "init_lora_weights": value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("use_rslora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("rank_pattern", {"q_proj": 8}),
        ("modules_to_save", ["lm_head"]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("velora_config", {"num_groups": 4}),
        ("monteclora_config", {"samples": 4}),
        ("bias", "all"),
        ("bias", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", 1),
        ("of_a_later_version", True),
        ("of_a_later_version", 0),
        ("of_a_later_version", ""),
    ],
)
def test_anything_else_is_named(name: str, value: object) -> None:
    assert lora.unsupported_options({**PLAIN, name: value}) == [name]


def test_numbers_are_finite() -> None:
    assert lora.is_finite_number(6)
    assert lora.is_finite_number(-0.5)
    assert not any(map(lora.is_finite_number, (float("nan"), float("inf"), 10**400, True, "6", None)))
