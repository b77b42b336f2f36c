"""How often a program waits for the device: a stated number a block, however many prompts are in it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.accelerator.cpu_backed import Wait
from tests.accelerator.setup import Place, place_model, requests

KINDS = ("paths A", "ablation groups", "roles pointer", "binding isolated", "diagnostic")
MAXIMUM = {
    # flags of what moved, a trip a run; and the columns of the table
    "paths A": 7,
    # one table of the circuits and one of the full model
    "ablation groups": 2,
    # of each of five groups: patterns by layer of both prompts, and the logits; logits of both prompts before
    "roles pointer": 23,
    # attention by layer and logits, before and after; the check of keys
    "binding isolated": 7,
    # residuals of both prompts by layer; of each of two places the flags of two runs, and logits
    "diagnostic": 24,
}
"""Waits for a block on a Gemma 2 of seven layers, besides those of transformers' masks."""


@pytest.fixture(scope="module")
def place() -> Place:
    return place_model("pointer@gemma2", 1)


def counted(waits: list[Wait]) -> Counter[str]:
    """Waits by the function that they happen in; those of the masks, two for each of two kinds a pass, apart."""
    return Counter(wait.within[0] for wait in waits if wait.within[0] != "_pass")


@pytest.mark.slow
def test_waits_are_bounded_and_do_not_grow_with_prompts(place: Place) -> None:
    small, large = (dict(requests(place.cpu, place.circuit, n)) for n in (2, 4))
    place.measure(small["binding isolated"])  # directions are measured once, for all
    for kind in KINDS:
        two, four = (counted(place.measure(by_kind[kind])[1]) for by_kind in (small, large))
        assert two == four, kind
        assert two.total() <= MAXIMUM[kind], (kind, two)


def test_a_pass_waits_for_the_masks_alone(place: Place) -> None:
    """Two questions for each kind of mask: Gemma 2 has two kinds, and a recording of several prompts two passes."""
    _, waits = place.measure(dict(requests(place.cpu, place.circuit, 3))["ability"])
    assert Counter(wait.within[0] for wait in waits)["_pass"] <= 2 * 2
