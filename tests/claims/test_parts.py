"""Parts shared by several rows, for cases in which planted models cannot separate right from wrong."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from claims import test_binding_signatures as of_binding
from claims import test_tracing as of_tracing
from claims.catalogue import claim
from claims.parts import judge_candidates
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.procedure import builtin_procedure
from rebinding.verdicts import Verdict, effect
from rebinding.verdicts.sentences import Part

PAYLOAD = claim("tracing.pointer_before_payload")
PRINTED = claim("roles.b_moves_pointer")
N_PROMPTS = 6
SENTENCE = claim("roles.b_raises_pointer")


@pytest.mark.parametrize(("row", "levels"), [(PRINTED, {LEVEL / 4}), (SENTENCE, {LEVEL / 4, LEVEL})])
def test_candidates_share_the_level(row: Claim, levels: set[float]) -> None:
    """One of several conventions is the right one, and nobody knows which: an error on any of them is an error. A
    sentence is refuted only if it fails under all of them, so there each has the whole level."""
    calls: set[tuple[str, float]] = set()

    def judge(name: str, level: float) -> Verdict:
        calls.add((name, level))
        return effect([0.1, 0.11, 0.09, 0.1, 0.105], margin=0.1, level=level)

    names = ("one", "two", "three", "four")
    judge_candidates(row, judge, names)
    assert calls == {(name, level) for name in names for level in levels}


@pytest.mark.parametrize(("losses", "share"), [([True, True, False, True], 2 / 3), ([False] * 4, 0.0)])
def test_an_order_of_layers_counts_prompts_with_a_loss(
    losses: list[bool], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the patch has nothing to restore in any prompt, no order was seen, and none counts as kept."""
    holds = pd.Series([True, False, True, True])
    monkeypatch.setattr(of_tracing, "restorable", lambda evidence, conventions: pd.Series(losses))
    unused: Any = None  # `restorable` is replaced above
    part = of_tracing.in_most(PAYLOAD, holds, (unused, unused))
    assert isinstance(part, partial)
    assert part(level=LEVEL).measured == pytest.approx(share)


def test_parts_that_the_text_cites_for_one_model_apply_to_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shares of switches, the range is known."""
    monkeypatch.setattr(of_binding, "shift", lambda *_: np.full(N_PROMPTS, 0.5))
    monkeypatch.setattr(of_binding, "controls", lambda _: ("random_q", "random_k"))
    evidence: Any = None

    def read_parts(model: str | None) -> dict[str, Part]:
        study: Any = SimpleNamespace(paper_model=model, procedure=lambda claim: builtin_procedure(claim.procedure))
        return of_binding.cancelled(claim("binding.qk_cancels"), study, evidence)

    common = read_parts(None)
    assert set(read_parts("gemma3-12b")) - set(common) == {"answer by both"}
    assert set(read_parts("gemma2-9b")) - set(common) == {"switches no more than random"}
    switches = read_parts("gemma2-9b")["switches no more than random"]
    assert isinstance(switches, partial)
    senses = switches.args[1]
    assert set(senses) == {
        f"{condition}, {variant}" for condition in ("random_q", "random_k") for variant in ("switch", "switch_example")
    }
    assert {part.keywords["support"] for part in senses.values()} == {(-1.0, 1.0)}
