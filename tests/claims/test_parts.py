"""Small things that several rows are made of, where no plant tells right from wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import pytest

from claims import test_tracing as of_tracing
from claims.parts import of_candidates
from rebinding.paper.claim import LEVEL
from rebinding.paper.rows.tracing import PAYLOAD
from rebinding.verdicts import Verdict, effect


def test_candidates_share_the_level() -> None:
    """One of several conventions is the right one, and nobody knows which: an error on any of them is an error."""
    asked: list[tuple[str, float]] = []

    def judged(name: str, level: float) -> Verdict:
        asked.append((name, level))
        return effect([1.0, 1.1, 0.9, 1.0, 1.05], margin=0.1, level=level)

    of_candidates(judged, ("one", "two", "three", "four"))
    assert asked == [(name, LEVEL / 4) for name in ("one", "two", "three", "four")]


@pytest.mark.parametrize(("lost", "share"), [([True, True, False, True], 2 / 3), ([False] * 4, 0.0)])
def test_an_order_of_layers_is_asked_where_something_is_lost(
    lost: list[bool], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the patch has nothing to restore in any prompt, no order was seen, and none counts as kept."""
    holds = pd.Series([True, False, True, True])
    monkeypatch.setattr(of_tracing, "restorable", lambda evidence, way: pd.Series(lost))
    there: Any = None  # what is restorable is told above
    part = of_tracing.in_most(PAYLOAD, holds, (there, there))
    assert isinstance(part, partial)
    assert part(level=LEVEL).measured == pytest.approx(share)
