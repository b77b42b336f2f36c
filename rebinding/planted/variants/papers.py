"""Variants of the printed numbers: the model is unchanged, and the paper prints other numbers."""

from __future__ import annotations

from types import MappingProxyType

from rebinding.paper.numbers import Quantity, tolerance
from rebinding.planted.variants.variant import Numbers, Variant

APART = 3.0
"""Margins by which a misprinted number is off; one margin is allowed."""
KINDS: dict[str, Quantity] = {
    "accuracy.": "accuracy", "margin.": "margin", "logit.": "logit", "roles.": "dlogit",
    ".dR": "dR", ".dlogit": "dlogit", ".switch": "switch",
}  # fmt: skip
"""Kinds of quantity by the begin or end of a number's name; counts of heads are not changed."""


def _misprinted(numbers: Numbers) -> Numbers:
    """Every number far off."""
    return MappingProxyType({id: _off(id, value) for id, value in numbers.items()})


def _off(id: str, value: float) -> float:
    kind = next((kind for part, kind in KINDS.items() if id.startswith(part) or id.endswith(part)), None)
    if kind is None:
        return value
    allowed = tolerance(kind)
    step = APART * (allowed.around(value) or 0.0)
    return value - step if allowed.proportion and value > 0.5 else value + step


def _zero_random_shifts(numbers: Numbers) -> Numbers:
    """Of a random shift: with no direction from slot to slot there is nothing whose length a random one could have."""
    return MappingProxyType({**numbers, **{f"binding.random.{name}": 0.0 for name in ("dR", "dlogit", "switch")}})


PAPERS = {
    "misprint": Variant(("pointer",), "the printed numbers are those of another model", prints=_misprinted),
    "still": Variant(
        ("lexical",), "the paper also prints a row for random shifts: nothing moves", prints=_zero_random_shifts
    ),
}
