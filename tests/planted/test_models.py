"""Plants are ordinary models: the real classes, saved and loaded like any other, the same in every build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rebinding.planted import ARCHITECTURES, MECHANISMS, TemplateError, WiringError, build, parse
from rebinding.task.prompts import Encoder
from tests.close import agree
from tests.planted.runs import encoded, logits, plant

CLASSES = {"llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_genuine_models_of_hostile_shape(architecture: str) -> None:
    loaded_model = plant(f"pointer@{architecture}")
    config = loaded_model.model.config
    assert type(loaded_model.model).__name__ == CLASSES[architecture]
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.num_attention_heads * config.head_dim != config.hidden_size
    assert {parameter.dtype for parameter in loaded_model.model.parameters()} == {torch.float32}
    assert all(float(layer.mlp.down_proj.weight.abs().max()) > 0 for layer in loaded_model.model.model.layers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_and_loaded(architecture: str, tmp_path: Path) -> None:
    loaded_model, prompts = plant(f"pointer@{architecture}"), encoded("counterbalanced", 3)
    loaded_model.model.save_pretrained(tmp_path)
    loaded_model.tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert Encoder(tokenizer).encode([prompts[0].prompt])[0].ids == prompts[0].ids
    ids = torch.tensor([prompt.ids for prompt in prompts])
    with torch.no_grad():
        second = loaded(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    assert agree(second, logits(loaded_model, prompts))  # what is read from a file lies elsewhere in memory


def test_builds_are_reproducible_and_seeds_differ() -> None:
    first, second, reseeded = (build("pointer", seed=seed).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], reseeded[name]) for name in first)
    assert build("pointer", seed=1).heads != build("pointer").heads


def test_fewer_decoys() -> None:
    assert len(build("pointer", decoys=3).decoys) == 3
    assert build("pointer", decoys=0).decoys == ()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_names_are_read_back(mechanism: str) -> None:
    for text in (mechanism, f"planted:{mechanism}@gemma3?boxes=5&softness=0.5&seed=2"):
        assert parse(parse(text).name) == parse(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("pointers", "no mechanism"),
        ("pointer@gpt2", "no architecture"),
        ("pointer?boxes=8", "3 to 7"),
        ("pointer?size=8", "no option"),
        ("pointer@gemma2@llama", "not of the form"),
        ("global+veto", "no variant"),
        ("pointer?softness=2", "from 0"),
    ],
)
def test_bad_names_say_what_there_is(text: str, word: str) -> None:
    with pytest.raises(WiringError, match=word):
        build(parse(text))


@pytest.mark.parametrize(
    ("boxes", "operations", "verb", "word"),
    [(5, 1, "swap", "up to 3"), (3, 1, "move", "swap sentences only"), (3, 2, "swap", "more than once")],
)
def test_prompts_of_another_kind_are_refused(boxes: int, operations: int, verb: str, word: str) -> None:
    from rebinding.task.designs import design

    loaded_model = plant("pointer")
    foreign = design("published", boxes=boxes, operations=operations, verb=verb)  # type: ignore[arg-type]  # a table's text
    (prompt,) = Encoder(loaded_model.tokenizer).encode([foreign.prompt(0)])
    with pytest.raises(TemplateError, match=word):
        loaded_model.check_prompt(prompt)
