"""How much attention heads have on the slots that are compared, on evidence made by hand."""

from __future__ import annotations

import pytest

from rebinding.experiments.binding.summary import (
    attention_on_slots,
    select_heads_on_slots,
    share_of_examples,
    shift,
    with_heads,
)
from rebinding.paper.procedure import builtin_procedure
from rebinding.verdicts import GateFailed
from tests.experiments.binding.test_measures import FIRST, SECOND, evidence, rows

TWO = evidence(rows("k_box"), rows("k_both"), rows("k_both", draw=1))
PUBLISHED, CONTROLLED = (builtin_procedure(name).binding for name in ("published", "controlled"))


def test_shares_are_of_slots_i_and_j_and_count_an_example_once() -> None:
    """The first head has 0.2 on slot 0 and 0.6 on slot 1; the second 0.01 and 0.02, and the most on the third slot."""
    table = attention_on_slots(TWO)
    assert list(zip(table["layer"], table["head"], strict=True)) == [(2, 0), (2, 5)]
    assert table["share"].tolist() == pytest.approx([0.8, 0.03])
    assert table["leads"].tolist() == [1, 0]
    assert share_of_examples(TWO) == 1


def test_heads_together_lead_where_their_sum_does() -> None:
    """What the second head has on the third slot outweighs the first."""
    louder = evidence(rows("k_both"))
    louder.rows.loc[1, "before_box_2"] = 0.9
    assert share_of_examples(louder) == 0


def test_a_controlled_row_leaves_out_heads_without_attention_there() -> None:
    """Published they are averaged over as any other."""
    faint = evidence(rows("k_both"))
    for slot in (0, 1):
        faint.rows.loc[1, f"before_object_{slot}"] *= 0.3  # 0.003 and 0.006 are less than a hundredth together
    assert select_heads_on_slots(faint, PUBLISHED) is faint
    assert shift(select_heads_on_slots(faint, CONTROLLED), "k_both", "dR") == pytest.approx(FIRST, abs=1e-6)
    full = evidence(rows("k_both"))
    assert shift(select_heads_on_slots(full, CONTROLLED), "k_both", "dR") == pytest.approx(
        (FIRST + SECOND) / 2, abs=1e-6
    )


def test_gate_fails_without_heads() -> None:
    faint = with_heads(evidence(rows("k_both")), frozenset({(2, 5)}))
    for slot in (0, 1):
        faint.rows.loc[0, f"before_object_{slot}"] *= 0.3
    with pytest.raises(
        GateFailed, match=r"slot_mass: the heads of group B have at most 0\.009 of .*, one must have at least 0\.01"
    ):
        select_heads_on_slots(faint, CONTROLLED)
    assert select_heads_on_slots(faint, PUBLISHED) is faint
