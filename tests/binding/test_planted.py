"""Interventions on models whose mechanism is known: the measures say what the weights say."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from rebinding.experiments.binding.conditions import QK_SOURCE, TABLE, WRONG_HEADS, WRONG_POSITION
from rebinding.experiments.binding.measures import per_example, summary
from rebinding.surgery.sites import Scope
from rebinding.world.designs import DesignName
from tests.binding.setup import BLOCK, planted

ARCHITECTURES = ("llama", "gemma2", "gemma3")
CONDITIONS = (*TABLE, QK_SOURCE, *WRONG_HEADS, *WRONG_POSITION)
SURE = 1.0
"""Nats of dR. A planted match moves several, a shift that does nothing moves some hundredths."""


@cache
def table(mechanism: str, architecture: str, design: DesignName, scope: Scope = "head") -> pd.DataFrame:
    n = BLOCK if design == "counterbalanced" else 6
    learned = 2 * BLOCK if mechanism == "lexical" else n
    evidence = planted(mechanism, architecture).binding(design, CONDITIONS, n=n, learned=learned, scope=scope)
    return summary(evidence).set_index("condition")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("design", ["published", "counterbalanced"])
def test_matching_redirects_and_cancels(architecture: str, design: DesignName) -> None:
    """`pointer`: queries and keys each redirect, both together cancel, and labels do not carry the answer."""
    found = table("pointer", architecture, design)
    assert found.loc["q", "dR"] > SURE
    assert found.loc["k_both", "dR"] > SURE
    assert abs(found.loc["qk", "dR"]) < found.loc[["q", "k_both"], "dR"].min() / 10
    assert abs(found.loc["qk", "dlogit"]) < found.loc[["q", "k_both"], "dlogit"].min() / 10
    assert found.loc["qk", "switch_example"] == 0
    assert found.loc["q", "switch_example"] == found.loc["k_both", "switch_example"] == 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_labels_address_and_objects_are_read_out(architecture: str) -> None:
    """`pointer`: shifted label keys move a share of the attention, but far less than that share of the logits."""
    found = table("pointer", architecture, "published")
    share = {measure: found.loc["k_box", measure] / found.loc["k_both", measure] for measure in ("dR", "dlogit")}
    assert share["dR"] > 0.2
    assert share["dlogit"] < share["dR"] / 2
    assert found.loc["k_object", "dlogit"] > 2 * found.loc["k_box", "dlogit"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_controls_do_nothing(architecture: str) -> None:
    """`pointer`: the same shifts on other heads, or at other tokens, leave attention and answer alone."""
    found = table("pointer", architecture, "published")
    for control in (*WRONG_HEADS, *WRONG_POSITION):
        assert abs(found.loc[control.name, "dR"]) < 0.05
        assert abs(found.loc[control.name, "dlogit"]) < 0.1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keys_of_one_slot_cancel_half(architecture: str) -> None:
    """`pointer`: with Q and the keys of slot i alone both slots match the query, so attention is left between them."""
    found = table("pointer", architecture, "published")
    assert found.loc["qk", "dR"] + SURE < found.loc["qk_source", "dR"] < found.loc["q", "dR"] - SURE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_slot_preference_imitates_key_dominance(architecture: str) -> None:
    """`recency`: with the one published pair keys seem to decide and the query not, and nothing cancels."""
    found = table("recency", architecture, "published")
    assert abs(found.loc["q", "dR"]) < 0.2
    assert found.loc["k_both", "dR"] > SURE
    assert found.loc["qk", "dR"] > found.loc["k_both", "dR"] - 0.2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_ordered_pairs_expose_it(architecture: str) -> None:
    """`recency`: the same heads, asked for every ordered pair of slots, show nothing on average."""
    found = table("recency", architecture, "counterbalanced")
    assert found.loc[["q", "k_both", "qk"], "dR"].abs().max() < 0.1


def test_the_preference_changes_sign_with_the_order_of_the_pair() -> None:
    """`recency`: what cancels over the pairs is not small: every pair shows it, with the sign of its order."""
    examples = per_example(planted("recency", "llama").binding("counterbalanced", TABLE, n=BLOCK))
    keys = examples[examples["condition"] == "k_both"].groupby(["i", "j"])["dR"].mean()
    assert len(keys) == 6
    for (i, j), effect in keys.items():
        assert (effect > SURE) == (j < i)
        assert (effect < -SURE) == (j > i)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("design", ["published", "counterbalanced"])
def test_without_slots_nothing_moves(architecture: str, design: DesignName) -> None:
    """`lexical`: labels are matched by their text, so slots have no direction that could redirect anything.

    What is left of the labels in a difference of means falls with the number of prompts behind it; six are too few.
    """
    found = table("lexical", architecture, design)
    assert found.loc[["q", "k_both", "k_box", "k_object", "qk"], "dR"].abs().max() < 0.5
    assert found["switch_example"].max() == 0
