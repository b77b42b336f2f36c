"""What leaves a part of a prompt by which token: sums of known effects, and who is asked as sender and receiver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rebinding.experiments.search.graph import Node, part_of
from rebinding.experiments.search.measure import CROSSED, crossings
from rebinding.experiments.search.summary import led_by_expected

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


@pytest.mark.parametrize(
    ("token", "part"),
    [("contains@context_asked+1", "context"), (".@swap_second+1", "swap"), ("Box@question_box-1", "question")],
)
def test_every_token_is_in_a_part(token: str, part: str) -> None:
    assert part_of(Node(0, 0, token)) == part
