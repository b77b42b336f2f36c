"""The list of claims is whole: a test for every row of the truth table, a row for every test, and for every row a
planted model on which it holds and one on which it does not."""

from __future__ import annotations

import pytest

from claims.catalogue import claims
from claims.test_binding import CONDITIONS
from rebinding.paper.claim import Claim
from rebinding.planted import MECHANISMS, VARIANTS
from rebinding.planted.truth import Wanted, truth_of

VERDICTS: tuple[Wanted, ...] = ("REPLICATED", "NOT REPLICATED")
UNIDENTIFIED = "which control, and which switches, were printed is not known: a number of something else is not refuted"
TOLD_TWICE = "text and code differ, and a number that may be of either cannot be refuted"
REPORTS = "it claims nothing; its findings are compared with what was planted"
REPORTED = ("signature", "signature.controlled", "slot_attended", "qk_cancels_logit", "qk_cancels_logit.controlled")
SMALL = "plants have 56 heads, of which many work; the row is judged on models of 200 and more"
NAMES_ANOTHER = "while the swap names another box, no plant that reads both mentions answers as before"
ALL_OF_IT = "read on the shifted tokens alone, either kind of keys turns all the attention that there is"
GUESSES = "the plants on which it would come out so guess by the place of a name, and nothing is judged on these"
UNREACHABLE: dict[tuple[str, Wanted], str] = {
    **{("robust.more_operations", verdict): GUESSES for verdict in VERDICTS},
    ("circuit.three_to_ten_percent", "REPLICATED"): GUESSES,
    ("binding.table.random.dR", "NOT REPLICATED"): UNIDENTIFIED,
    ("binding.table.random.dlogit", "NOT REPLICATED"): UNIDENTIFIED,
    ("roles.b_moves_pointer", "NOT REPLICATED"): TOLD_TWICE,
    ("roles.b_leaves_content", "NOT REPLICATED"): TOLD_TWICE,
    ("roles.a_on_g9", "NOT REPLICATED"): TOLD_TWICE,
    **{(f"binding.table.{condition}.switch", "NOT REPLICATED"): UNIDENTIFIED for condition in CONDITIONS},
    **{
        (f"binding.{row}.{metric}", "NOT REPLICATED"): TOLD_TWICE
        for row in ("table.k_box", "table.k_object", "table.qk", "correct_only.qk")
        for metric in ("dR", "dlogit")
    },
    **{(f"binding.{row}", verdict): REPORTS for row in REPORTED for verdict in VERDICTS},
    **{("binding.dr_robust", verdict): REPORTS for verdict in VERDICTS},
    **{("beyond.resolved_at_readout", verdict): REPORTS for verdict in VERDICTS},
    **{("circuit.few_heads", verdict): SMALL for verdict in VERDICTS},
    ("binding.both_keys_most", "REPLICATED"): ALL_OF_IT,
    **{
        (f"tracing.{stories}{box}_box_not_from_context", "NOT REPLICATED"): NAMES_ANOTHER
        for stories in ("", "five_boxes.")
        for box in ("reference", "swap")
    },
}
"""Verdicts that a row cannot get on any planted model, and why."""


def test_every_row_is_judged_once() -> None:
    ids = [claim.id for claim in claims()]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(truth_of("pointer"))


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_every_claim_declares_how_it_is_judged(claim: Claim) -> None:
    assert claim.statement.endswith(".")
    assert claim.source
    assert claim.where
    assert claim.statistic
    assert all(margin > 0 for margin in claim.margins.values())


def test_every_row_can_hold_and_can_fail() -> None:
    """An exemption that is not needed fails here as well."""
    kinds = [(mechanism, None) for mechanism in MECHANISMS]
    kinds += [(mechanism, name) for name, variant in VARIANTS.items() for mechanism in variant.mechanisms]
    cells = {(row, truth.verdict) for kind in kinds for row, truth in truth_of(*kind).items()}
    expected = {(row, verdict) for row in truth_of("pointer") for verdict in VERDICTS}
    assert expected - cells == set(UNREACHABLE)
