"""Variants for the claims about tracing: routes that are right in prompts of fixed slots only."""

from __future__ import annotations

from dataclasses import replace

from rebinding.planted.language.template import STOP_AFTER_LABEL, STOP_BEFORE_QUESTION
from rebinding.planted.language.wiring import Line, Wiring
from rebinding.planted.variants.variant import Variant, edited, without


def _shortcut(wiring: Wiring) -> Wiring:
    """The slot after the asked one is taken, whatever was swapped: right in every prompt of fixed slots."""
    target = "; ".join(f"goal[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))

    def simpler(line: Line) -> list[Line]:
        return [replace(line, look="context", where="label = label", prefer="", right=1.0, write=target)]

    return edited(without(wiring, "other", "its slot", "other slot", "own"), "pair", simpler)


def _last_swap(wiring: Wiring) -> Wiring:
    """The slot of the box that the last swap names first is taken, whoever is asked: its label, where the context
    mentions it, decides alone."""
    back = STOP_BEFORE_QUESTION + STOP_AFTER_LABEL

    def simpler(line: Line) -> list[Line]:
        return [replace(line, look="second", where="", prefer="", right=1.0, back=back, write="goal <- pair")]

    return edited(without(wiring, "its slot", "own"), "pair", simpler)


TRACING = {
    "shortcut": Variant(("pointer",), "the swap is ignored and the next slot taken", _shortcut),
    "last_swap": Variant(("pointer",), "the box that the last swap names first is taken, whoever is asked", _last_swap),
}
