"""Parts shared by several rows, for cases in which planted models cannot separate right from wrong."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from claims import signatures
from claims import test_tracing as of_tracing
from claims.catalogue import claim
from claims.conventions import judge_candidates
from rebinding.paper.claim import LEVEL, Claim
from rebinding.verdicts import Verdict, effect
from rebinding.verdicts.sentences import Part

PAYLOAD = claim("tracing.pointer_before_payload")
PRINTED = claim("roles.b_moves_pointer")
CANCELS = claim("binding.qk_cancels")
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
    """And to the row of which the paper says them, not to the same parts as the other family's signature."""
    monkeypatch.setattr(signatures, "shift", lambda *_: np.full(N_PROMPTS, 0.5))
    monkeypatch.setattr(signatures, "controls", lambda _: ("random_q", "random_k"))
    evidence: Any = None

    def read_parts(model: str | None, row: Claim = CANCELS) -> dict[str, Part]:
        study: Any = SimpleNamespace(paper_model=model)
        return signatures.matching(row, study, evidence)

    common = set(read_parts(None))
    assert set(read_parts("gemma3-12b")) - common == {"answer by both"}
    assert set(read_parts("gemma2-9b")) - common == {"nearer to random"}
    near = read_parts("gemma2-9b")["nearer to random"]
    assert isinstance(near, partial)
    assert set(near.args[1]) == {"random_q", "random_k"}
    controlled = claim("binding.qk_cancels.controlled")
    for model in ("gemma2-9b", "gemma3-12b"):
        assert set(read_parts(model, claim("binding.key_dominance"))) == set(read_parts(model, controlled)) == common
