"""`shape:` models have the sizes of the paper's models, and weights that cost nothing to draw."""

from __future__ import annotations

import pytest
import torch

from rebinding.models import ALIASES, build_shape, check, shape_config
from rebinding.models.shapes import skeleton
from rebinding.surgery import Anatomy, derive

TABLE = {
    # layers, heads, KV heads, head_dim (the paper's table); parameters (of Gemma-3-12B without its vision tower)
    "gemma2-9b": (42, 16, 8, 256, 9_241_705_984),
    "gemma3-12b": (48, 16, 8, 256, 11_766_034_176),
    "llama3.2-3b": (28, 24, 8, 128, 3_212_749_824),
    "llama3.1-8b": (32, 32, 8, 128, 8_030_261_248),
}
SMALL = {"num_hidden_layers": 2, "vocab_size": 300, "intermediate_size": 64, "hidden_size": 96}


@pytest.mark.parametrize("alias", ALIASES)
def test_the_exact_shape(alias: str) -> None:
    model = skeleton(shape_config(alias), torch.bfloat16, torch.device("meta"))
    anatomy = derive(model)
    count = sum(weight.numel() for weight in model.parameters())
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.parts[0].n_kv_heads, anatomy.parts[0].head_dim, count) == TABLE[
        alias
    ]
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_gemma_shapes_keep_their_special_features() -> None:
    meta = torch.device("meta")
    gemma2 = derive(skeleton(shape_config("gemma2-9b"), torch.float32, meta))
    gemma3 = derive(skeleton(shape_config("gemma3-12b"), torch.float32, meta))
    assert (gemma2.score_softcap, gemma2.logit_softcap, _windows(gemma2)) == (50.0, 30.0, [4096, None] * 21)
    assert (gemma3.score_softcap, gemma3.logit_softcap, _windows(gemma3)) == (None, None, [*[1024] * 5, None] * 8)
    assert (gemma2.parts[0].q_norm, gemma3.parts[0].q_norm) == ("", "q_norm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_cut_down_shape_passes_the_self_check(alias: str, dtype: torch.dtype) -> None:
    model = build_shape(alias, dtype=dtype, device=torch.device("cpu"), **_small(alias))
    anatomy = check(model)
    assert (anatomy.n_layers, anatomy.parts[0].head_dim) == (2, TABLE[alias][3])
    assert model.get_input_embeddings().weight.dtype == dtype


def _small(alias: str) -> dict[str, object]:
    return SMALL | ({"layer_types": ["sliding_attention", "full_attention"]} if "gemma" in alias else {})


def test_weights_are_random_and_rows_differ() -> None:
    model = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), **SMALL)
    table = model.get_input_embeddings().weight
    assert float(table.std()) == pytest.approx(0.02, rel=0.05)  # 28,800 draws: relative error of the spread 0.4 %
    assert table.unique(dim=0).shape[0] == 300
    rebuilt = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), **SMALL)
    reseeded = build_shape("llama3.1-8b", dtype=torch.float32, device=torch.device("cpu"), seed=1, **SMALL)
    assert torch.equal(table, rebuilt.get_input_embeddings().weight)
    assert not torch.equal(table, reseeded.get_input_embeddings().weight)
    assert bool((model.model.norm.weight == 1).all())
    assert not torch.equal(model.lm_head.weight, table)
    first, second = (layer.self_attn.q_proj.weight for layer in model.model.layers)
    assert not torch.equal(first, second)


def _windows(anatomy: Anatomy) -> list[int | None]:
    return [parts.mask.size for parts in anatomy.parts]
