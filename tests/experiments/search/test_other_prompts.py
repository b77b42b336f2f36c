"""The graph on disjoint prompts, and the same edges by another method: attribution by gradients."""

from __future__ import annotations

import pytest

from benchmarks.against_gradients import approximated, best, rates, searched
from benchmarks.edges import Link
from rebinding.experiments.search.search import Search
from rebinding.planted import Plant
from tests.planted.runs import plant

FIRST, SECOND = 0, 36
"""Balanced blocks of 36 that share no prompt."""


@pytest.fixture(scope="module")
def loaded_model() -> Plant:
    return plant("lexical@llama")


@pytest.fixture(scope="module")
def first_search(loaded_model: Plant) -> tuple[frozenset[Link], Search]:
    return searched(loaded_model, FIRST)


@pytest.mark.slow
def test_every_edge_is_found_again(loaded_model: Plant, first_search: tuple[frozenset[Link], Search]) -> None:
    second, second_search = searched(loaded_model, SECOND)
    assert not set(second_search.pairs.ids) & set(first_search[1].pairs.ids)
    assert second == first_search[0] != frozenset()


@pytest.mark.slow
def test_gradients_tell_the_same_edges(loaded_model: Plant, first_search: tuple[frozenset[Link], Search]) -> None:
    """A plant is nearly linear: at its best threshold the approximation has them all, and nothing else. With the search
    it shares the recorded prompts only."""
    edges, search = first_search
    sizes = approximated(loaded_model, search)
    assert len(sizes) > 100 * len(edges)  # of so many
    assert rates(best(sizes, edges), edges) == (1.0, 1.0)
