"""Models that learned: the adapter means to peft what it means here, and its card can be actual again."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from rebinding.learned.evaluation import accuracy, evaluation_designs
from rebinding.learned.shelf import Learned, parse, shipped
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import load as load_circuit
from rebinding.study.model_under_test import owner_of
from rebinding.task.words import Vocabulary
from tests.close import agree, felt
from tests.learned.cards import read_card

SHIPPED = parse("smollm2")
FEW = 18


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_peft_opens_the_adapter_and_computes_the_same(smollm2: LoadedModel, learned: LoadedModel) -> None:
    base = copy.deepcopy(smollm2.model)
    base.set_attn_implementation("eager")
    theirs = PeftModel.from_pretrained(base, SHIPPED.folder).eval()
    prompts = [drawn.prompt(1) for drawn in evaluation_designs(Vocabulary()).values()]
    with torch.no_grad():
        for one in learned.encoder().encode(prompts):
            ids = torch.tensor([one.ids])
            got = learned.model(ids, use_cache=False).logits[0, -1]
            assert agree(got, theirs(input_ids=ids, use_cache=False).logits[0, -1])
            assert felt(got, smollm2.model(ids, use_cache=False).logits[0, -1])


@pytest.mark.parametrize("one", shipped(), ids=lambda one: one.name)
def test_it_does_what_its_card_says(one: Learned, smollm2_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first prompts of each design again: with no more wrong than the card has, and no more right."""
    monkeypatch.setenv(one.base.variable, str(smollm2_file))
    card, loaded_model = read_card(one.folder), load(one.name)
    for name, drawn in evaluation_designs(Vocabulary()).items():
        actual = accuracy(loaded_model.model, loaded_model.encoder(), [drawn.prompt(number) for number in range(FEW)])
        expected = card.after[name]
        assert FEW - (expected.n - expected.right) <= actual.right <= expected.right, name


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
    assert all(torch.equal(one, frequencies[name]) for name, one in adapted.named_buffers())


def test_the_base_does_not_do_the_task(smollm2: LoadedModel) -> None:
    swaps = [evaluation_designs(Vocabulary())["published"].prompt(number) for number in range(FEW)]
    assert accuracy(smollm2.model, smollm2.encoder(), swaps).right < FEW * 2 / 3


def test_the_subject_says_what_it_is(smollm2: LoadedModel, learned: LoadedModel) -> None:
    assert smollm2.weights == "dequantised from Q4_1 and Q8_0"
    assert learned.weights == f"dequantised from Q4_1 and Q8_0, with the adapter {SHIPPED.folder.name}"
    assert learned.fingerprint != smollm2.fingerprint
    anatomy = learned.anatomy
    assert (anatomy.n_layers, anatomy.n_heads, anatomy.n_kv_heads) == (30, 9, 3)
