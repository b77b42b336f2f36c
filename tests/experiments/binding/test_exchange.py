"""Which donors of real queries are refused; their numbers are compared in `tests/oracles/by_hand`."""

from __future__ import annotations

from typing import Any

import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import every_pair
from rebinding.experiments.binding.measure import run_exchange
from rebinding.surgery import SurgeryError
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded
from tests.experiments.binding.setup import SLOTS, Bench, planted

STORIES = design("counterbalanced", split="evaluation")


def draw_donors(bench: Bench, n: int) -> list[list[Encoded]]:
    return [bench.encoder.encode(STORIES.direction(number, slot) for number in range(n)) for slot in range(SLOTS)]


def exchange(bench: Bench, n: int, **options: Any) -> Evidence:
    settings: dict[str, Any] = {"donors": draw_donors(bench, n), "heads": bench.heads, "ids": range(n)} | options
    return run_exchange(
        bench.surgeon,
        bench.prompts("counterbalanced", n),
        token=bench.encoder.answer_token,
        pairs=every_pair(SLOTS),
        **settings,
    )


def test_donors_are_the_same_story() -> None:
    bench = planted("pointer", "llama")
    other_stories = [
        bench.encoder.encode(STORIES.direction(number + 1, slot) for number in range(2)) for slot in range(SLOTS)
    ]
    with pytest.raises(SurgeryError, match="a donor for slot 0 is the prompt's own story"):
        exchange(bench, 2, donors=other_stories)
    with pytest.raises(SurgeryError, match="a donor for slot 0"):
        exchange(bench, 2, donors=draw_donors(bench, 2)[::-1])
