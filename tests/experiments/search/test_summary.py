"""Which senders are kept, by what name, and what leaves a part of a prompt, on effects that are made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rebinding.experiments.search.graph import Node, part_of
from rebinding.experiments.search.measure import CROSSED, crossings
from rebinding.experiments.search.summary import family, led_by_expected, select_senders

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


EVERY_SLOT = ["context_box[0]", "context_box[1]", "context_box[2]"]


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (lambda number, slot: 1.0 * (slot == number % 3), ["context_asked"]),
        (lambda number, slot: 1.0 * (slot == 1), ["context_box[1]"]),
        (lambda number, slot: 1.0, EVERY_SLOT),
        # at one slot, where that is the asked one: the function tells more of the effects, the head is at the slot
        (lambda number, slot: 1.0 * (slot == number % 3 == 1), ["context_box[1]"]),
        # at the labels of the others: a name of the asked one would tell least of it
        (lambda number, slot: 0.2 if slot == number % 3 else 1.0, EVERY_SLOT),
    ],
)
def test_a_sender_is_named_by_function_or_by_place(effect: Callable[[int, int], float], expected: list[str]) -> None:
    """What follows the question has the question's name, what stays in its slot the slot's."""
    assert names(rows(effect)) == expected


@pytest.mark.parametrize("elsewhere", [0.0, 1.0])
def test_a_head_that_was_run_at_one_place_is_named_by_that_place(elsewhere: float) -> None:
    """Rows of a single place, as where the bound left the others out: the name of its function stands at other places
    too, at which the head has no effect, whatever it does here."""
    table = rows(lambda number, slot: elsewhere + 1.0 * (slot == number % 3))
    assert names(table[table["place"] == "context_box[1]"]) == ["context_box[1]"]


def test_a_family_has_no_slot_and_no_order() -> None:
    assert family("contains@context_box[2]+1") == family("contains@context_box[0]+1") == "contains@context_box+1"
    assert family("Box@swap_second-1") == family("Box@swap_first-1")


def test_small_and_uncertain_senders_are_left_out() -> None:
    """Below the least; and an effect that is chance, however large, unless the strata explain it."""
    assert names(rows(lambda number, slot: 0.05)) == []
    sign = {number: DICE.choice([-1.0, 1.0]) for number in range(N)}
    assert names(rows(lambda number, slot: 0.3 + 2 * sign[number])) == []
    assert names(rows(lambda number, slot: 3.0 * (number % 3 == 2))) == [f"context_box[{slot}]" for slot in range(3)]


def test_a_head_that_works_against_the_answer_is_kept() -> None:
    """A head without which the answer gains is kept, with a negative effect."""
    (sender,) = select_senders(
        rows(lambda number, slot: -1.0 * (slot == 2)), STRATA, FUNCTIONS, min_effect=0.1, alpha=0.01
    )
    assert sender.node.token == "context_box[2]"
    assert sender.low < sender.effect < sender.high < 0


def test_requested_nodes_keep_their_names() -> None:
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


LABEL, STOP, WORD = Node(2, 0, "swap_partner"), Node(2, 1, "swap_period"), Node(2, 2, "items@swap_first-3")
BOX, QUESTION, READOUT = Node(1, 0, "context_box[1]"), Node(3, 0, "question_box"), Node(4, 0, "readout")
NODES = (READOUT, QUESTION, LABEL, STOP, WORD, BOX)
ROWS = pd.DataFrame(
    [
        # prompt, place, before, after
        (7, "swap_first", 9.0, 4.0),  # the partner's label stands first here, and last in the other prompt
        (7, "swap_period", 9.0, 8.0),
        (7, "items@swap_first-3", 9.0, 10.5),  # without it the answer gains
        (8, "swap_second", 6.0, 5.0),
        (8, "swap_period", 6.0, 3.0),
    ],
    columns=["prompt", "place", "before", "after"],
)


class RecordingSearch:
    """A search that records its steps and returns the rows of the swap, whatever the senders."""

    pairs = SimpleNamespace(ids=(7, 8, 9))

    def __init__(self) -> None:
        self.steps: list[tuple[list[Node], list[Node]]] = []

    def step(self, receivers: list[Node], allowed: list[Node]) -> Any:
        self.steps.append((receivers, allowed))
        return SimpleNamespace(rows=ROWS)


def test_losses_are_summed_by_the_token_of_the_sender() -> None:
    """A prompt without effective senders counts, with 0."""
    evidence = crossings(RecordingSearch(), NODES)  # it has all that `crossings` uses
    rows = evidence.rows[evidence.rows["crossing"] == "swap to question"].set_index("prompt")
    assert rows["expected_tokens"].to_dict() == {7: 5.0, 8: 1.0, 9: 0.0}
    assert rows["other_tokens"].to_dict() == {7: 1.0 - 1.5, 8: 3.0, 9: 0.0}
    assert led_by_expected(evidence, "swap to question").tolist() == [5.5, -2.0, 0.0]


def test_senders_stand_in_one_part_and_receivers_in_later_ones() -> None:
    search = RecordingSearch()
    crossings(search, NODES)
    swap = [LABEL, STOP, WORD]
    assert search.steps == [(swap, [BOX]), ([QUESTION], swap), ([READOUT], [QUESTION]), ([READOUT, QUESTION], swap)]


def test_no_step_is_run_without_a_sender_below_a_receiver() -> None:
    """The losses of that part are then 0 at every token."""
    search = RecordingSearch()
    later_nodes = crossings(search, [Node(5, 0, "swap_second"), QUESTION])
    assert search.steps == []
    assert (later_nodes.rows[["expected_tokens", "other_tokens"]] == 0).all(axis=None)
    assert len(later_nodes.rows) == len(CROSSED) * len(RecordingSearch.pairs.ids)


def test_every_token_is_in_a_part() -> None:
    tokens = ("contains@context_asked+1", ".@swap_second+1", "Box@question_box-1")
    assert [part_of(Node(0, 0, token)) for token in tokens] == ["context", "swap", "question"]
