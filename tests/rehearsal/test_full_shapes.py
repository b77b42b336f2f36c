"""Every kind of request on the full shapes of the paper's models, two prompts each, on tensors without numbers.

A head count, window, mask or norm that does not fit 48 layers fails here, and not when the weights have been paid for.
"""

from __future__ import annotations

import pytest

from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit
from rebinding.rehearsal.agenda import Item, agenda
from rebinding.rehearsal.known import TOKENS
from rebinding.rehearsal.pretended import Pretence
from rebinding.rehearsal.subject import hollow_bench
from rebinding.study import floors
from rebinding.study.bench import Bench
from rebinding.study.checks import gates_of
from rebinding.subjects import ALIASES

FEW = 2
ROOM = 1 << 34
"""Bytes for a batch, as on a card that would run these shapes: a processor's would only cut the same into more."""


def failed(bench: Bench, item: Item) -> list[str]:
    """The gates on evidence that do not hold: as many units as were asked for, finite numbers, edits that moved."""
    asked = item.make(FEW)
    if item.averaged:
        bench.averaged(asked)
        return []
    return [
        f"{item.name}: {gate.name}, {gate.detail}" for gate in gates_of(asked, bench.measured(asked)) if not gate.passed
    ]


@pytest.mark.slow
@pytest.mark.parametrize("alias", ALIASES)
def test_every_request_fits_the_shape(alias: str) -> None:
    pretence = Pretence(hollow=True)
    with pretence:
        tokens = TOKENS[ALIASES[alias].form]
        bench = hollow_bench(alias, pretence, dtype=ALIASES[alias].dtype, tokens=tokens, budget=lambda: ROOM)
        items = list(agenda(bench, Circuit(circuit(alias))))
        items += [Item("floors", floors.IN_16_BITS, FEW, lambda n: floors.asked(bench, bench.design("published")))]
        wrong = [line for item in items for line in failed(bench, item)]
    assert len(items) > 50
    assert not wrong
