"""Which senders are kept, and by what name, on effects that are made up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.summary import family, select_senders

N = 18
STRATA = {number: number % 3 for number in range(N)}
"""The slot of the asked box."""
FUNCTIONS = {number: {f"context_box[{number % 3}]": "context_asked"} for number in range(N)}
DICE = np.random.default_rng(0)


def rows(effect: Callable[[int, int], float], head: int = 0) -> pd.DataFrame:
    """A head at three labels of 18 prompts, with an effect by prompt and slot, and a little chance."""
    cells = [(number, slot) for number in range(N) for slot in range(3)]
    rows = [
        {
            "prompt": number, "component": "v", "layer": 1, "head": head, "token": slot,
            "place": f"context_box[{slot}]",
            "function": FUNCTIONS[number].get(f"context_box[{slot}]", ""), "before": 5.0, "relative_change": 0.1,
            "after": 5.0 - effect(number, slot) - 0.01 * DICE.standard_normal(),
        }
        for number, slot in cells
    ]  # fmt: skip
    return pd.DataFrame(rows)


def names(table: pd.DataFrame, min_effect: float = 0.1) -> list[str]:
    return [sender.node.token for sender in select_senders(table, STRATA, FUNCTIONS, min_effect=min_effect, alpha=0.01)]


def test_summary_groups_by_function_where_that_explains_more() -> None:
    """What follows the question has the question's name, what stays in its slot the slot's."""
    assert names(rows(lambda number, slot: 1.0 * (slot == number % 3))) == ["context_asked"]
    assert names(rows(lambda number, slot: 1.0 * (slot == 1))) == ["context_box[1]"]
    everywhere = names(rows(lambda number, slot: 1.0))
    assert everywhere == ["context_box[0]", "context_box[1]", "context_box[2]"]


def test_summary_groups_by_place_where_the_function_acts_there_only() -> None:
    """At one slot, where that is the asked one: the function tells more of the effects, the head is at the slot."""
    assert names(rows(lambda number, slot: 1.0 * (slot == number % 3 == 1))) == ["context_box[1]"]


def test_summary_groups_by_place_where_unnamed_tokens_do_most() -> None:
    """At the labels of the others: a name of the asked one would tell least of it."""
    tokens = names(rows(lambda number, slot: 0.2 if slot == number % 3 else 1.0))
    assert tokens == ["context_box[0]", "context_box[1]", "context_box[2]"]


def test_small_and_unsure_ones_are_left_out() -> None:
    """Below the least; and an effect that is chance, however large, unless the strata explain it."""
    assert names(rows(lambda number, slot: 0.05)) == []
    sign = {number: DICE.choice([-1.0, 1.0]) for number in range(N)}
    assert names(rows(lambda number, slot: 0.3 + 2 * sign[number])) == []
    assert names(rows(lambda number, slot: 3.0 * (number % 3 == 2))) == [f"context_box[{slot}]" for slot in range(3)]


def test_against_as_well_as_for() -> None:
    """A head without which the answer gains is kept, with a negative effect."""
    (sender,) = select_senders(
        rows(lambda number, slot: -1.0 * (slot == 2)), STRATA, FUNCTIONS, min_effect=0.1, alpha=0.01
    )
    assert sender.node.token == "context_box[2]"
    assert sender.low < sender.effect < sender.high < 0


def test_family() -> None:
    assert family("contains@context_box[2]+1") == family("contains@context_box[0]+1") == "contains@context_box+1"
    assert family("Box@swap_second-1") == family("Box@swap_first-1")


def test_a_head_that_was_run_at_one_place_is_not_moved_by_its_name() -> None:
    """Rows of a single place, as where the bound left the others out: other places count as no effect."""
    table = rows(lambda number, slot: 1.0 + 0.5 * (slot == number % 3))
    assert names(table[table["place"] == "context_box[1]"]) == ["context_box[1]"]


def test_a_name_is_had_at_every_place_that_bears_it() -> None:
    """Run at one place, and doing something there where it is the asked one: the name stands at other places too, at
    which the head does nothing."""
    table = rows(lambda number, slot: 1.0 * (slot == number % 3))
    assert names(table[table["place"] == "context_box[1]"]) == ["context_box[1]"]


def test_nodes_that_are_asked_about_are_told_by_their_own_names() -> None:
    """By what the token is for or by where it stands, with what the head does there; others, and other heads, not."""
    table = rows(lambda number, slot: 2.0 * (slot == number % 3) + 1.0 * (slot == 1))
    nodes = [
        Node(1, 0, "context_asked"),
        Node(1, 0, "context_box[1]"),
        Node(1, 0, "readout"),
        Node(1, 3, "context_asked"),
    ]
    senders = select_senders(table, STRATA, nodes, min_effect=0.0, alpha=0.01)
    assert [sender.node for sender in senders] == nodes[:2]
    assert [round(sender.effect, 1) for sender in senders] == [2.3, 1.7]
