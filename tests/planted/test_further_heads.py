"""Variants with heads beside those of the mechanism: what they look at, and what they can do alone."""

from __future__ import annotations

import pytest

from rebinding.experiments.attention import measure_heads
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder
from tests.planted.runs import encoded, margins, plant


def swapped() -> list[Encoded]:
    """Prompts that ask about a box of the swap, named first or last."""
    return [prompt for prompt in encoded("counterbalanced", 24) if "swap_asked" in prompt.roles]


def narrated(count: int) -> list[Encoded]:
    """Prompts in which a narrator speaks around the statements."""
    stories = design("counterbalanced", narrative=True)
    return Encoder(plant("pointer").tokenizer).encode(stories.prompt(number) for number in range(count))


def test_a_reminded_question_looks_at_its_own_box_in_the_swap() -> None:
    """The further head finds the box's label in the swap, wherever it is named there; the answers stay."""
    loaded_model, prompts = plant("pointer+reminded"), swapped()
    assert margins(loaded_model, prompts).min() > 1.0
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [loaded_model.heads["mention"]], "question_box").rows
    assert rows[rows["token"] == "swap_asked"]["attention"].min() > 0.9


def test_a_backup_answers_without_the_circuit() -> None:
    """Without either chain the other one still answers, and without both nothing does."""
    loaded_model, prompts = plant("pointer+backup"), swapped()
    own_tokens = [
        (head.layer, head.head) for head in loaded_model.circuit if head.group != "E"
    ]  # E is what both chains rest on
    spare = [head for line, head in loaded_model.heads.items() if line.endswith(" again")]
    assert margins(loaded_model, prompts, own_tokens).min() > 1.0
    assert margins(loaded_model, prompts, spare).min() > 1.0
    assert margins(loaded_model, prompts, [*own_tokens, *spare]).max() < 0.1


def test_the_swap_is_read_again_for_its_partner() -> None:
    """A head of B finds the label whose box holds the answer in the context, wherever it is named in the swap."""
    loaded_model, prompts = plant("pointer+swap_reader"), swapped()
    assert margins(loaded_model, prompts).min() > 1.0
    head = loaded_model.heads["reread"]
    assert head in {(declared.layer, declared.head) for declared in loaded_model.circuit if declared.group == "B"}
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [head], "readout").rows
    assert rows[rows["token"] == "swap_partner"]["attention"].min() > 0.9


def test_a_faint_match_has_a_hundred_thousandth_of_the_attention() -> None:
    loaded_model, prompts = plant("pointer+faint"), swapped()
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [loaded_model.heads["faint"]], "readout").rows
    values = rows[rows["token"] == "context_partner_object"]["attention"]
    assert 1e-6 < values.min() <= values.max() < 1e-4


@pytest.mark.parametrize(
    ("name", "follows"), [("pointer", False), ("pointer+ordinal", True), ("pointer+by_place", True)]
)
def test_narrator_heads_follow_the_narrator(name: str, follows: bool) -> None:
    values = margins(plant(name), narrated(9))
    assert bool(values.min() > 1.0) == follows
    assert follows or (values > 0).float().mean() < 0.7
