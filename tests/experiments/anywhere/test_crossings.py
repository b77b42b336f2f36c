"""What leaves a part of a prompt by which token: sums of known effects, and who is asked as sender and receiver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.experiments.search.crossings import CROSSED, crossings
from rebinding.experiments.search.summary import led_by_expected
from rebinding.paper.graph import Node, part_of

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


class Told:
    """A search that has been asked before: whoever sends, the swap's rows come back."""

    pairs = SimpleNamespace(ids=(7, 8, 9))

    def __init__(self) -> None:
        self.asked: list[tuple[list[Node], list[Node]]] = []

    def step(self, receivers: list[Node], allowed: list[Node]) -> Any:
        self.asked.append((receivers, allowed))
        return SimpleNamespace(rows=ROWS)


def test_losses_are_summed_by_where_the_message_left() -> None:
    """A prompt in which nobody says anything counts, with nothing."""
    found = crossings(Told(), NODES)  # it has what is looked at
    rows = found.rows[found.rows["crossing"] == "swap to question"].set_index("prompt")
    assert rows["expected"].to_dict() == {7: 5.0, 8: 1.0, 9: 0.0}
    assert rows["elsewhere"].to_dict() == {7: 1.0 - 1.5, 8: 3.0, 9: 0.0}
    assert led_by_expected(found, "swap to question").tolist() == [5.5, -2.0, 0.0]


def test_senders_stand_in_one_part_and_receivers_in_later_ones() -> None:
    told = Told()
    crossings(told, NODES)
    swap = [LABEL, STOP, WORD]
    assert told.asked == [(swap, [BOX]), ([QUESTION], swap), ([READOUT], [QUESTION]), ([READOUT, QUESTION], swap)]


def test_nobody_is_asked_where_no_sender_is_below_a_receiver() -> None:
    """Nothing then goes on from that part, by any token."""
    told = Told()
    late = crossings(told, [Node(5, 0, "swap_second"), QUESTION])
    assert told.asked == []
    assert (late.rows[["expected", "elsewhere"]] == 0).all(axis=None)
    assert len(late.rows) == len(CROSSED) * len(Told.pairs.ids)


@pytest.mark.parametrize(
    ("token", "part"),
    [("contains@context_asked+1", "context"), (".@swap_second+1", "swap"), ("Box@question_box-1", "question")],
)
def test_every_token_is_in_a_part(token: str, part: str) -> None:
    assert part_of(Node(0, 0, token)) == part
