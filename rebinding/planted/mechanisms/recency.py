"""`recency`: the answer comes by the pointer's route, and the heads that are called group B have nothing to do with it.

They stand at the readout and prefer the later slot, whatever is asked. Under an experiment with one fixed pair of
slots that looks like "the key decides and the query does not"; over both orders of the pair it vanishes. The heads that
do bind are listed with group A, so that the circuit as a whole is complete.
"""

from __future__ import annotations

from dataclasses import replace

from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.mechanisms import pointer

STEP = 2.0
"""Nats by which a slot is preferred to the one before it."""
LISTENING = 0.01
"""Share of a step for the slot that is asked for: next to nothing, but no query is the same for every question."""
WHISPER = 0.1
"""Logits of the object that such a head attends to."""
BINDING = ("fetch", "match")


def wiring(boxes: int) -> Wiring:
    """The pointer's lines, its binding heads counted with A, and two heads of fixed preference as B."""
    route = pointer.wiring(boxes)
    lines = tuple(replace(line, group="A") if line.name in BINDING else line for line in route.lines)
    return replace(route, lines=lines + tuple(_late(name, look, boxes) for name, look in LOOKS.items()))


LOOKS = {"late object": "thing", "late token": "context + thing"}


def _late(name: str, look: str, boxes: int) -> Line:
    preference = " + ".join(f"{k} slot[{k}]" for k in range(1, boxes))
    return Line(name, 5, "readout", look, f"object <- {WHISPER} object", "B", "readout", sharing_class="late",
                where=f"{LISTENING} want = slot", prefer=preference, unit=STEP, right=boxes - 1.0)  # fmt: skip
