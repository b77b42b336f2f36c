"""The measures on evidence made by hand, where every value can be worked out on paper."""

from __future__ import annotations

from math import log

import numpy as np
import pandas as pd
import pytest

from rebinding.evidence import Evidence, EvidenceError
from rebinding.experiments.binding.summary import per_example, per_head, shift, summary

SLOTS = 3
HEADS = (0, 5)
MASS = {
    ("before", "box"): {0: (0.1, 0.2, 0.0), 5: (0.0, 0.0, 0.1)},
    ("before", "object"): {0: (0.1, 0.4, 0.1), 5: (0.01, 0.02, 0.0)},
    ("after", "box"): {0: (0.4, 0.1, 0.0), 5: (0.0, 0.0, 0.1)},
    ("after", "object"): {0: (0.4, 0.1, 0.0), 5: (0.04, 0.02, 0.0)},
}
LOGITS = {"before": (1.0, 4.0, 2.0), "after": (3.0, 2.5, 9.0)}


def rows(condition: str, *, id: int = 7, correct: bool = True, draw: int = 0) -> list[dict[str, object]]:
    result = []
    for head in HEADS:
        row = {"prompt": id, "i": 1, "j": 0, "correct": correct, "condition": condition, "draw": draw}
        row |= {"layer": 2, "head": head}
        for (moment, kind), by_head in MASS.items():
            row |= {f"{moment}_{kind}_{slot}": by_head[head][slot] for slot in range(SLOTS)}
        for moment, logits in LOGITS.items():
            row |= {f"{moment}_logit_{slot}": logits[slot] for slot in range(SLOTS)}
        result.append(row)
    return result


def evidence(*tables: list[dict[str, object]]) -> Evidence:
    conditions = {"k_box": {"kinds": ["box"]}, "k_both": {"kinds": ["box", "object"]}}
    table = pd.DataFrame([row for part in tables for row in part])
    return Evidence("binding", table, {"slots": SLOTS, "conditions": conditions})


EVIDENCE = evidence(rows("k_both"))
FIRST = log(0.8 / 0.2) - log(0.2 / 0.6)
SECOND = log(0.04 / 0.02) - log(0.01 / 0.02)


def test_per_head() -> None:
    """dR and switch of each head; the second one's top slot is the third, before and after."""
    table = per_head(EVIDENCE)
    assert table["dR"].tolist() == pytest.approx([FIRST, SECOND], abs=1e-6)
    assert table["switch"].tolist() == [True, False]


def test_per_example() -> None:
    """Averages over heads, attention summed before taking logs, and the margin of the two objects."""
    (row,) = per_example(EVIDENCE).to_dict("records")
    assert row["dR"] == pytest.approx((FIRST + SECOND) / 2, abs=1e-6)
    assert row["dR_summed"] == pytest.approx(log(0.84 / 0.22) - log(0.21 / 0.62), abs=1e-6)
    assert row["switch"] == 0.5
    assert row["switch_example"]
    assert row["dlogit"] == pytest.approx((3.0 - 2.5) - (1.0 - 4.0))


def test_readout_sets() -> None:
    """Fixed to one kind, or tied to the tokens that each condition shifts."""
    box = log(0.4 / 0.1) - log(0.1 / 0.2)
    assert per_head(EVIDENCE, readout=("box",))["dR"].iloc[0] == pytest.approx(box, abs=1e-6)
    tied = per_head(evidence(rows("k_box"), rows("k_both")), readout="tied").set_index(["condition", "head"])["dR"]
    assert tied["k_box", 0] == pytest.approx(box, abs=1e-6)
    assert tied["k_both", 0] == pytest.approx(FIRST, abs=1e-6)


def test_empty_attention_counts_as_eps() -> None:
    """A head without attention on labels has the ratio of two eps: zero, not a missing value."""
    assert per_head(EVIDENCE, readout=("box",))["dR"].iloc[1] == 0
    louder = per_head(EVIDENCE, readout=("box",), eps=0.1)["dR"].iloc[0]
    assert louder == pytest.approx(log(0.5 / 0.2) - log(0.2 / 0.3))


def test_ties_go_to_the_lower_slot() -> None:
    """Equal attention on slots 0 and 1 before: the head was not on slot 1."""
    tied = evidence(rows("k_both"))
    for kind, slot in (("box", 0), ("object", 0), ("box", 1), ("object", 1)):
        tied.rows.loc[0, f"before_{kind}_{slot}"] = 0.25
    assert not per_head(tied)["switch"].iloc[0]


def test_summary_keeps_only_correct_examples_on_request() -> None:
    """Examples that the unedited model got wrong stay out of the last table."""
    wrong = rows("k_both", id=8, correct=False)
    for row in wrong:
        row["after_logit_0"] = 13.0
    combined = evidence(rows("k_both"), wrong)
    assert summary(combined)["dlogit"].iloc[0] == pytest.approx((3.5 + 13.5) / 2)
    correct_only = summary(combined, only_correct=True)
    assert correct_only["dlogit"].iloc[0] == pytest.approx(3.5)
    assert correct_only["n"].iloc[0] == 1
    with pytest.raises(EvidenceError, match="no example was answered correctly"):
        summary(evidence(wrong), only_correct=True)


def test_summary_reports_the_spread_of_draws() -> None:
    """Two draws of one condition: their mean, and the standard deviation of their means."""
    second_draw = rows("k_both", draw=1)
    for row in second_draw:
        row["after_logit_0"] = 5.0
    (row,) = summary(evidence(rows("k_both"), second_draw)).to_dict("records")
    assert row["dlogit"] == pytest.approx(4.5)
    assert row["sd_dlogit"] == pytest.approx(2**0.5)
    assert (row["draws"], row["n"]) == (2, 1)


def test_shared_values_are_read_only() -> None:
    values = shift(evidence(rows("k_box"), rows("k_box", id=8)), "k_box", "dlogit")
    assert values.shape == (2,)
    with pytest.raises(ValueError, match="read-only"):
        np.negative(values, out=values)
