"""On models whose mechanism we wrote, tracing finds it.

`pointer` keeps the context as it is, notes at the swap's second label what it was swapped with, carries that over the
question box to the readout, and only there goes back for the object. `global` writes the whole new state at the swap's
full stop, where the question box looks it up.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import diagnose
from rebinding.experiments.tracing.modes import trace_design
from rebinding.experiments.tracing.summary import by_role, by_token
from rebinding.planted import build
from rebinding.surgery import TorchSurgeon, derive
from rebinding.world.designs import Design, design
from rebinding.world.prompts import Encoder

N = {3: 3, 5: 2}
"""Prompts, by boxes."""
BOTH = [3, 5]
PARTNER_TO_REMAINING = "swap_target_box_to_remaining_context_box"


@cache
def plant(mechanism: str, boxes: int) -> tuple[TorchSurgeon, Encoder, Design]:
    made = build(mechanism, boxes=boxes)
    wide = {"distractor": "before"} if boxes == 5 else {}
    plan = design("published", boxes=boxes, tokenizer=made.tokenizer, **wide)
    return TorchSurgeon(made.model, derive(made.model)), Encoder(made.tokenizer), plan


@cache
def traced(mechanism: str, boxes: int, mode: str) -> Evidence:
    surgeon, encoder, plan = plant(mechanism, boxes)
    return trace_design(surgeon, encoder, plan, mode=mode, n=N[boxes], progress=False)


@cache
def diagnosed(mechanism: str, boxes: int) -> pd.DataFrame:
    surgeon, encoder, plan = plant(mechanism, boxes)
    return diagnose(surgeon, encoder, plan, ids=range(N[boxes]), progress=False).rows


def acting(mechanism: str, boxes: int, mode: str) -> dict[str, list[int]]:
    """Layers in which patching a role restores the answer in most prompts, by role; nothing may do so elsewhere."""
    evidence = traced(mechanism, boxes, mode)
    nameless = by_token(evidence).query("role == ''")
    assert (nameless["normalised"] < 0.5).all(), "a token without a role carries the answer"
    table = by_role(evidence).query("normalised > 0.5")
    return {str(role): sorted(rows["layer"]) for role, rows in table.groupby("role", observed=True)}


@pytest.mark.parametrize("boxes", BOTH)
def test_pointer_the_object_goes_straight_to_the_readout(boxes: int) -> None:
    acts = acting("pointer", boxes, "target_box")
    assert set(acts) == {"context_partner_object", "readout"}
    first_read = min(acts["readout"])
    assert acts["context_partner_object"][0] == 0
    assert first_read > 0
    assert acts["readout"] == list(range(first_read, max(acts["readout"]) + 1)), "once there it stays there"


@pytest.mark.parametrize("boxes", BOTH)
@pytest.mark.parametrize("mode", ["swap_only", PARTNER_TO_REMAINING])
def test_pointer_boxes_act_from_the_swap_on(boxes: int, mode: str) -> None:
    """From the swap's labels over the question box to the readout; the full stop carries nothing."""
    acts = acting("pointer", boxes, mode)
    edited = "swap_asked" if mode == "swap_only" else "swap_partner"
    assert set(acts) <= {"swap_asked", "swap_partner", "question_box", "readout"}
    assert acts[edited][0] == 0
    assert max(acts[edited]) < min(acts["readout"])
    assert min(acts["question_box"]) < min(acts["readout"])


@pytest.mark.parametrize("boxes", BOTH)
@pytest.mark.parametrize("mode", ["target_box", "swap_only", PARTNER_TO_REMAINING])
def test_global_the_swap_period_carries_everything(boxes: int, mode: str) -> None:
    """Whatever is edited, there are layers at which the full stop alone restores the answer."""
    acts = acting("global", boxes, mode)
    assert acts["swap_period"]
    restored = by_role(traced("global", boxes, mode)).query("role == 'swap_period'")["normalised"].max()
    assert restored == 1.0
    assert "swap_period" not in acting("pointer", boxes, mode)


@pytest.mark.parametrize("boxes", BOTH)
@pytest.mark.parametrize(("mechanism", "carrier"), [("pointer", "readout"), ("global", "swap_period")])
def test_the_diagnostic_tells_them_apart(mechanism: str, carrier: str, boxes: int) -> None:
    """The margins of all three questions move with the carrier's site, and with no other."""
    rows = diagnosed(mechanism, boxes)
    assert rows["original_correct"].all()
    assert rows["counterfactual_correct"].all()
    single = rows[rows["first"] == rows["last"]]
    best = (
        single.groupby(["question", "place", "first"])["change"].mean().groupby(["question", "place"]).max().unstack()
    )
    other = ({"readout", "swap_period"} - {carrier}).pop()
    assert len(best) == 3
    assert (best[carrier] > 3.0).all()
    assert (best[other] < 0.1 * best[carrier]).all()


def test_a_window_is_as_good_as_its_best_layer_on_a_plant() -> None:
    """All layers of the full stop at once: everything that is read there is counterfactual."""
    rows = diagnosed("global", 3)
    period = rows[rows["place"] == "swap_period"]
    single = period[period["first"] == period["last"]].groupby("question")["change"].max()
    whole = period[(period["last"] - period["first"]) == period["last"].max()].groupby("question")["change"].mean()
    np.testing.assert_allclose(whole, single, rtol=0.2)
