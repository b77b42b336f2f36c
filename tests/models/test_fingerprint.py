"""The same function has the same fingerprint, however it was stored; another function another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rebinding.models import load
from rebinding.models.loaded_model import fingerprint
from rebinding.planted.tokenizer import build_tokenizer
from tests.everyday import sampled
from tests.models.folders import ROWS, save, save_tiny
from tests.surgery.models import FAMILIES, Family, tiny


@pytest.mark.parametrize("family", sampled(FAMILIES, "llama", "gemma3"))
def test_fingerprint_survives_saving_sharding_and_loading(family: Family, tmp_path: Path) -> None:
    first = load(str(save_tiny(tmp_path / "one", family)))
    second = load(str(save(first.model, tmp_path / "two", max_shard_size="20KB")))
    assert len(list((tmp_path / "two").glob("*.safetensors"))) > 1
    assert first.fingerprint == second.fingerprint == fingerprint(tiny(family, vocab_size=ROWS), build_tokenizer())


@pytest.mark.parametrize("place", [(0, 0), (-1, -1)])
def test_single_weight_changes_the_fingerprint(place: tuple[int, int]) -> None:
    model, tokenizer = tiny("llama"), build_tokenizer()
    before = fingerprint(model, tokenizer)
    for weight in (model.model.layers[3].mlp.down_proj.weight, model.lm_head.weight):
        original = weight[place].clone()
        weight[place] = torch.nextafter(original, torch.tensor(9.0))
        assert fingerprint(model, tokenizer) != before
        weight[place] = original
    assert fingerprint(model, tokenizer) == before


def test_dtype_settings_and_tokenizer_change_it() -> None:
    tokenizer = build_tokenizer()
    prints = {
        fingerprint(tiny("gemma2"), tokenizer),
        fingerprint(tiny("gemma2").bfloat16(), tokenizer),
        fingerprint(tiny("gemma2", final_logit_softcapping=3.5), tokenizer),
    }
    tokenizer.chat_template += " "
    prints.add(fingerprint(tiny("gemma2"), tokenizer))
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["zeppelin"])
    prints.add(fingerprint(tiny("gemma2"), tokenizer))
    assert len(prints) == 5


def test_using_a_tokenizer_keeps_the_fingerprint() -> None:
    model, tokenizer = tiny("llama"), build_tokenizer()
    before = fingerprint(model, tokenizer)
    tokenizer(["Box A", "Box"], padding=True, truncation=True, max_length=2)
    tokenizer.padding_side = "left"
    assert fingerprint(model, tokenizer) == before
