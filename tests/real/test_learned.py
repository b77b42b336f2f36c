"""Models that learned: the adapter means to peft what it means here, and its card can be actual again."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from rebinding.learned.evaluation import accuracy, evaluation_designs
from rebinding.learned.lora import WEIGHTS
from rebinding.learned.shelf import Card, Learned, learned_models, parse
from rebinding.models import LoadedModel, load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import load as load_circuit
from rebinding.task.words import Vocabulary
from tests.close import agree, is_changed
from tests.real.fetch import fetch_base

SHIPPED = parse("smollm2")
N_PROMPTS = 18


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_peft_opens_the_adapter_and_computes_the_same(smollm2: LoadedModel, learned: LoadedModel) -> None:
    base = copy.deepcopy(smollm2.model)
    base.set_attn_implementation("eager")
    expected = PeftModel.from_pretrained(base, SHIPPED.folder).eval()
    prompts = [design.prompt(1) for design in evaluation_designs(Vocabulary()).values()]
    with torch.no_grad():
        for prompt in learned.encoder().encode(prompts):
            ids = torch.tensor([prompt.ids])
            actual = learned.model(ids, use_cache=False).logits[0, -1]
            assert agree(actual, expected(input_ids=ids, use_cache=False).logits[0, -1])
            assert is_changed(actual, smollm2.model(ids, use_cache=False).logits[0, -1])


@pytest.mark.parametrize("learned", learned_models(), ids=lambda learned: learned.name)
def test_adapter_does_what_its_card_says(learned: Learned, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first prompts of each design again: with no more wrong than the card has, and no more right."""
    if not (learned.adapter_folder / WEIGHTS).is_file():
        pytest.skip(f"needs `rebinding train '{learned.name}'`")
    monkeypatch.setenv(learned.base.variable, str(fetch_base(learned.base.name, real)))
    card, loaded_model = Card.read(learned.adapter_folder), load(learned.name)
    for name, design in evaluation_designs(Vocabulary()).items():
        actual = accuracy(
            loaded_model.model, loaded_model.encoder(), [design.prompt(number) for number in range(N_PROMPTS)]
        )
        expected = card.after[name]
        assert N_PROMPTS - (expected.n - expected.right) <= actual.right <= expected.right, name


def test_the_graph_beside_an_adapter_is_of_these_weights(learned: LoadedModel) -> None:
    """The file was written on another machine: a learned model is one subject wherever it is loaded."""
    circuit = load_circuit(SHIPPED.folder / "all-positions.json", owner_of(learned))
    nodes = json.loads((SHIPPED.folder / "graph.json").read_text("utf-8"))["nodes"]
    assert len(circuit.heads) == len(nodes) == 38


def test_the_adapters_folder_is_the_same_subject(
    learned: LoadedModel, smollm2_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHIPPED.base.variable, str(smollm2_file))
    assert load(str(SHIPPED.folder)).fingerprint == learned.fingerprint


def test_in_16_bits_positions_are_as_exact_as_in_the_base(smollm2_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHIPPED.base.variable, str(smollm2_file))
    adapted, base = (load(name, dtype="bfloat16").model for name in ("learned:smollm2", str(smollm2_file)))
    frequencies = dict(base.named_buffers())
    assert frequencies
    assert all(torch.equal(buffer, frequencies[name]) for name, buffer in adapted.named_buffers())


def test_the_base_does_not_do_the_task(smollm2: LoadedModel) -> None:
    swaps = [evaluation_designs(Vocabulary())["published"].prompt(number) for number in range(N_PROMPTS)]
    assert accuracy(smollm2.model, smollm2.encoder(), swaps).right < N_PROMPTS * 2 / 3


def test_the_subject_says_what_it_is(smollm2: LoadedModel, learned: LoadedModel) -> None:
    assert smollm2.weights == "dequantised from Q4_1 and Q8_0"
    assert learned.weights == f"dequantised from Q4_1 and Q8_0, with the adapter {SHIPPED.folder.name}"
    assert learned.fingerprint != smollm2.fingerprint
    anatomy = learned.anatomy
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.parts[0].n_kv_heads) == (30, 9, 3)
