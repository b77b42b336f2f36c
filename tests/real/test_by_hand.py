"""Rows of the claims on a model of each base that learned the task, held against computations that share nothing.

The claims' own code judges all rows on few prompts. Then a blind sample of every kind of evidence is computed again by
full forwards of the library's eager model, and every estimate from the evidence by lines of numpy. Few prompts decide
hardly anything; that the numbers are right does not depend on how many they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rebinding.evidence import Request
from rebinding.experiments.circuit.request import Knockout
from rebinding.learned.lora import WEIGHTS
from rebinding.learned.shelf import BASES, parse
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import Circuit, CircuitHead, save
from tests.oracles.by_hand.estimates import SAME_SUMS, compare_estimates, is_left_out
from tests.oracles.by_hand.judgements import judged
from tests.oracles.by_hand.recompute import BY_HAND, GATES, ByHand, averages, recomputed
from tests.real.fetch import fetch_base

ROWS = 12
"""Of a kind of evidence, or one of each request, where there are more of these."""


GEMMA_CIRCUIT = (
    *(CircuitHead("A", layer, head, "readout") for layer, head in ((11, 2), (15, 3), (15, 2), (15, 0), (17, 0))),
    *(CircuitHead("B", layer, head, "readout") for layer, head in ((10, 3), (15, 1))),
    CircuitHead("C", 11, 2, "question_box"),
    CircuitHead("D", 9, 1, "swap_partner"),
    CircuitHead("E", 6, 2, "context_partner"),
)
"""What path patching finds on `learned:gemma3-270m`, and a head for each group in which it finds none: numbers are
compared, whatever the heads do."""


@pytest.fixture(scope="module", params=BASES)
def by_hand(request: pytest.FixtureRequest, real: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByHand]:
    """All rows on the first adapter of each base. SmolLM2 has the circuit that the search finds."""
    learned = parse(request.param)
    if not (learned.adapter_folder / WEIGHTS).is_file():
        pytest.skip(f"needs `rebinding train '{learned.name}'`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(learned.base.variable, str(fetch_base(learned.base.name, real)))
        circuit = learned.folder / "all-positions.json"
        if not circuit.is_file():
            circuit = tmp_path_factory.mktemp("circuit") / "circuit.json"
            save(Circuit(GEMMA_CIRCUIT), owner_of(load(learned.name, dtype="float32")), circuit)
        yield ByHand(judged(learned.name, circuit))


def stopped_kinds(by_hand: ByHand) -> set[type[Request]]:
    """Kinds of which there is no evidence: with four heads a layer there are too few for random sets of others."""
    gates = {row.judgement.id: row.judgement.gate for row in by_hand.judged.rows}
    stopped = gates["beyond.necessary"] == "heads_to_spare"
    return {Knockout} if stopped else set()


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_evidence_is_what_full_forwards_give(by_hand: ByHand, kind: type[Request]) -> None:
    if kind in stopped_kinds(by_hand):
        pytest.skip("a gate stops the only row that asks for it")
    comparison = recomputed(by_hand, kind, ROWS)
    print(
        f"{kind.__name__}: {comparison.rows} rows, {comparison.worst:.3f} of what rounding allows, "
        f"{comparison.undecided} undecided"
    )
    assert comparison.rows
    assert not comparison.wrong


def test_means_are_means_of_full_forwards(by_hand: ByHand) -> None:
    differences = averages(by_hand)
    assert differences
    assert max(differences.values()) <= 1


def test_every_kind_of_evidence_has_a_recomputation(by_hand: ByHand) -> None:
    expected = {*BY_HAND, *GATES} - stopped_kinds(by_hand)
    assert {type(request) for request in by_hand.judged.evidence_by_request} == expected


def test_estimates_are_what_the_evidence_says(by_hand: ByHand) -> None:
    compared = [row for row in compare_estimates(by_hand.judged) if row.by_hand is not None]
    rows = sum(row.verdict for row in compared)
    print(f"{rows} of {len(by_hand.judged.rows)} rows have an estimate by hand, and {len(compared) - rows} parts")
    assert [row for row in compared if row.difference > SAME_SUMS] == []


def test_no_row_with_an_estimate_is_forgotten(by_hand: ByHand) -> None:
    assert [
        row.id for row in compare_estimates(by_hand.judged) if row.by_hand is None and not is_left_out(row.id)
    ] == []
