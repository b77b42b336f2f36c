"""Variants with heads beside those of the mechanism: what they look at, and what they can do alone."""

from __future__ import annotations

from rebinding.experiments.attention.looks import look
from rebinding.surgery import TorchSurgeon, derive
from rebinding.world.prompts import Encoded
from tests.planted.bench import encoded, margins, plant


def swapped() -> list[Encoded]:
    """Prompts that ask about a box of the swap, named first or last."""
    return [one for one in encoded("counterbalanced", 24) if "swap_asked" in one.roles]


def test_a_reminded_question_looks_at_its_own_box_in_the_swap() -> None:
    """The further head finds the box's label in the swap, wherever it is named there; the answers stay."""
    subject, prompts = plant("pointer+reminded"), swapped()
    assert margins(subject, prompts).min() > 1.0
    surgeon = TorchSurgeon(subject.model, derive(subject.model))
    rows = look(surgeon, prompts, range(len(prompts)), [subject.heads["mention"]], "question_box").rows
    assert rows[rows["token"] == "swap_asked"]["attention"].min() > 0.9


def test_a_backup_answers_without_the_circuit() -> None:
    """Without either chain the other one still answers, and without both nothing does."""
    subject, prompts = plant("pointer+backup"), swapped()
    own = [(head.layer, head.head) for head in subject.circuit if head.group != "E"]  # E is what both chains rest on
    spare = [head for line, head in subject.heads.items() if line.endswith(" again")]
    assert margins(subject, prompts, own).min() > 1.0
    assert margins(subject, prompts, spare).min() > 1.0
    assert margins(subject, prompts, [*own, *spare]).max() < 0.1
