"""Rows on numbers that are told here: what no plant, and no model that runs here, brings about."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from claims import test_attention as of_attention
from claims import test_circuit as of_circuits
from claims import test_tracing as of_tracing
from claims.test_binding import as_random, printed
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import number
from rebinding.paper.procedure import given
from rebinding.paper.rows.attention import A_LOOKS
from rebinding.paper.rows.binding import CANCELS
from rebinding.paper.rows.circuit import AGAIN
from rebinding.paper.rows.tracing import NOT_THROUGH
from rebinding.verdicts import ordering

FEW = 6


def told(**answers: Any) -> Any:
    """A study that says this and nothing else."""
    return SimpleNamespace(procedure=lambda claim: given(claim.procedure), **answers)


@pytest.mark.parametrize(("base", "gate"), [(1.0, "base"), (1 - 1 / FEW, None)])
def test_what_was_never_lost_cannot_be_restored(base: float, gate: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_tracing, "base", lambda *_: base)
    monkeypatch.setattr(of_tracing, "restored", lambda *_: np.zeros((2, FEW)))
    monkeypatch.setattr(of_tracing, "support", lambda *_: (-1.0, 1.0))
    found = of_tracing.test_labels_do_not_carry_the_object(NOT_THROUGH, told(traced=lambda *_: None))
    assert found.gate == gate


@pytest.mark.parametrize("where", ["published", "declared", "a file"])
@pytest.mark.parametrize("heads", [(), ((3, 4),)], ids=["empty", "one head"])
def test_a_group_that_the_paper_leaves_empty_is_not_looked_for(where: str, heads: tuple[Head, ...]) -> None:
    """On the paper's own circuit it is no gate that fails: nothing was claimed. Elsewhere the group is missing."""

    def discoveries(_: Any) -> Any:
        raise LookupError

    circuit = SimpleNamespace(group=lambda _: heads)
    study = told(found_here=False, circuit_from=where, circuit=circuit, discoveries=discoveries)
    judge = partial(of_circuits.test_the_published_heads_are_found_again, AGAIN["E"], study)
    if heads or where != "published":
        with pytest.raises(LookupError):
            judge()
    else:
        assert judge().outcome == "NOT APPLICABLE"


def test_shares_of_attention_are_bounded_as_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spread the bound comes from the range alone."""
    shares = {"context_partner_object": 0.75, "swap_asked": 0.25}
    monkeypatch.setattr(of_attention, "by_token", lambda _: {name: np.full(FEW, of) for name, of in shares.items()})
    monkeypatch.setattr(of_attention, "even", lambda _: np.full(FEW, 0.25))
    found = of_attention.test_a_looks_at_the_answers_object(A_LOOKS, told(ask=lambda *_: None))
    margin, level = A_LOOKS.margin(), 0.05
    here = ordering(np.full(FEW, 0.75), np.full(FEW, 0.25), margin=margin, support=(-1.0, 1.0), level=level)
    assert (found.outcome, found.low, found.high) == (here.outcome, here.low, here.high)


def test_shares_of_switches_are_bounded_as_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claims.test_binding.shift", lambda *_: np.full(FEW, 0.5))
    there: Any = None
    parts = as_random(CANCELS, there, "random_qk", "switch")
    supports = {name: part.keywords["support"] for name, part in parts.items() if isinstance(part, partial)}
    assert supports == {"dR": None, "dlogit": None, "switch": (-1.0, 1.0)}


def test_prompts_behind_an_unsaid_number_are_as_many_as_ours() -> None:
    part = printed(np.zeros((3, FEW)), number("binding.q.dR@llama3.2-3b"))
    assert isinstance(part, partial)
    assert part.keywords["paper_n"] == FEW
