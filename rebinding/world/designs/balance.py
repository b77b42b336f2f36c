"""The counterbalanced arrangement: nothing about a prompt but the swap itself tells in which slot the answer stands.

With n boxes, over every n * n ids from a multiple of n * n on, each pair (slot of the asked box, slot of the answer)
occurs once. Equal slots mean that the asked box is a bystander, and then two other boxes are swapped; otherwise the
asked box is swapped and the answer's slot is its partner's. So the slots of asked box and answer are independent. Over
`block_length` consecutive ids each pair also meets both orders of naming, and every choice of the other boxes, equally
often: asked box named first, named second, or not named at all are fully crossed with the slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from rebinding.world.words import DesignError


@dataclass(frozen=True)
class Cell:
    """One cell of the crossing: entity of each slot, who is asked, and whether the partner is named first."""

    order: tuple[int, ...]
    asked: int
    partner_first: bool


def block_length(boxes: int, operations: int) -> int:
    """How many consecutive ids make a balanced block."""
    if operations == 0:
        return boxes
    return boxes * boxes * _rounds(boxes)


def check_crossing(boxes: int, operations: int) -> None:
    if operations > 0 and boxes < operations + 2:
        raise DesignError(
            f"{boxes} boxes and {operations} operations leave no bystander to ask about; counterbalancing needs at"
            f" least {operations + 2} boxes"
        )


def cell(prompt_id: int, boxes: int, operations: int) -> Cell:
    """The cell of an id. Ids walk through the crossing in strides, so that short runs are spread over it as well."""
    if operations == 0:
        slot = prompt_id % boxes
        return Cell(_fill(boxes, {slot: 0}, 0), 0, True)
    pairs = boxes * boxes
    step = prompt_id % pairs
    round_number = (prompt_id // pairs + step) % _rounds(boxes)
    asked_slot, answer_slot = divmod(step * _stride(pairs) % pairs, boxes)
    choice, naming = divmod(round_number, 2)
    if asked_slot != answer_slot:
        placed = {asked_slot: 0, answer_slot: operations}
        return Cell(_fill(boxes, placed, choice), 0, bool(naming))
    others = [slot for slot in range(boxes) if slot != asked_slot]
    first, second = divmod(choice, boxes - 2)
    near = others[first]
    far = [slot for slot in others if slot != near][second]
    bystander = operations + 1
    return Cell(_fill(boxes, {asked_slot: bystander, near: 0, far: operations}, choice), bystander, bool(naming))


def _rounds(boxes: int) -> int:
    """Two orders of naming times the ordered pairs of boxes that can be swapped beside a bystander."""
    return 2 * (boxes - 1) * (boxes - 2)


def _fill(boxes: int, placed: dict[int, int], rotation: int) -> tuple[int, ...]:
    """Put the entities that have no slot yet, in order, into the free slots, beginning `rotation` slots further on."""
    free = [slot for slot in range(boxes) if slot not in placed]
    rest = [entity for entity in range(boxes) if entity not in placed.values()]
    order = dict(placed)
    for index, entity in enumerate(rest):
        order[free[(index + rotation) % len(free)]] = entity
    return tuple(order[slot] for slot in range(boxes))


def _stride(length: int) -> int:
    """A step near the golden section of `length` that visits every number below it once."""
    step = round(length * 0.618)
    while gcd(step, length) != 1:
        step += 1
    return step
