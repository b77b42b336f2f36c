"""The language of mechanisms: one line per head.

The residual stream is divided into *spaces* of named directions, one direction per value ("one-hot"). A line says
at which tokens a head queries, to which tokens it attends, how far back, what has to match, and what it copies. An
*expression* is a sum of spaces or of single directions with gains, as in `pair + 2 slot`; `slot[1]` is one direction of
a space.

The score of a key, in nats, is a sum of *conditions*, each a product of a query expression and a key expression:

* the gate, GATE when the query is one of `at` and the key one of `look`;
* the distance, when `back` is given: at least GATE more at exactly that many tokens back than at any other distance;
* the match: `d` for each unit of inner product between the two sides of `where`;
* the preference: `d` for each unit of `prefer` at the key.

A threshold is subtracted from every key but the first token, so that a right key is `m` above the first token (the
sink), which carries nothing: a head that finds nothing attends to it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TypeAlias

GATE = 30.0
"""Nats of the condition on the kind of token, and of the distance: enough to rule out a key that fails one."""
HARD_MARGIN, SOFT_MARGIN = 15.0, 2.5
HARD_MATCH, SOFT_MATCH = 30.0, 4.0
SOFT_JITTER = 0.1
GRADED_GAP = 1.5
"""Nats between the match of a head that is graded by design and the largest margin it may have."""

Expression: TypeAlias = tuple[tuple[float, str], ...]


class WiringError(ValueError):
    """The weights of a wiring would not do what its lines say."""


@dataclass(frozen=True)
class Softness:
    """The softness of attention: a right key is `m` nats over the sink and `d` over wrong content.

    `of(0)` is practically a hard choice, `of(1)` about the softest with which a circuit still works. Heads that only
    read the grammar of the prompt stay hard.
    """

    m: float
    d: float
    jitter: float

    @classmethod
    def of(cls, amount: float) -> Softness:
        """Geometric interpolation between the two ends."""
        if not 0.0 <= amount <= 1.0:
            raise WiringError(f"softness is a number from 0 (hard) to 1 (graded); got {amount}")
        margin = HARD_MARGIN * (SOFT_MARGIN / HARD_MARGIN) ** amount
        match = HARD_MATCH * (SOFT_MATCH / HARD_MATCH) ** amount
        return cls(margin, match, SOFT_JITTER * amount)


@dataclass(frozen=True)
class Line:
    """One head.

    `at` and `look` are expressions of token kinds; `back` is a distance, or a distance for each kind in `at`; `where`
    is `query side = key side`; `write` lists `space <- expression`. `unit` replaces `d`, for a head whose choice is
    graded by design. `right` is how many units of match and preference the rightful key has. Lines of different
    sharing classes never share a KV head. A line without a group is no part of the declared circuit.
    """

    name: str
    layer: int
    at: str
    look: str
    write: str
    group: str | None = None
    role: str | None = None
    back: int | tuple[tuple[str, int], ...] | None = None
    where: str = ""
    prefer: str = ""
    unit: float | None = None
    right: float = 1.0
    grammar: bool = False
    sharing_class: str = ""

    @property
    def distances(self) -> tuple[tuple[str, int], ...]:
        """The distance of the key for each kind of querying token; empty if any distance is right."""
        if isinstance(self.back, int):
            distance = self.back
            return tuple((name, distance) for _, name in expression(self.at))
        return self.back or ()

    @property
    def matches(self) -> tuple[tuple[Expression, Expression], ...]:
        """The (query side, key side) pairs of `where`, separated by semicolons."""
        sides = [part.split("=") for part in self.where.split(";") if part.strip()]
        if any(len(pair) != 2 for pair in sides):
            raise WiringError(f"head {self.name}: where is `query side = key side`; got {self.where!r}")
        return tuple((expression(query), expression(key)) for query, key in sides)

    @property
    def writes(self) -> tuple[tuple[str, Expression], ...]:
        """The (written space, read expression) pairs of `write`."""
        sides = [part.split("<-") for part in self.write.split(";") if part.strip()]
        if not sides or any(len(pair) != 2 for pair in sides):
            raise WiringError(f"head {self.name}: write is `space <- expression`; got {self.write!r}")
        return tuple((target.strip(), expression(source)) for target, source in sides)


@dataclass(frozen=True)
class Wiring:
    """A mechanism: the spaces it adds to those of the embedding, and its heads."""

    boxes: int
    spaces: dict[str, int]
    lines: tuple[Line, ...]
    layers: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", 1 + max(line.layer for line in self.lines))

    def at_layer(self, layer: int) -> tuple[Line, ...]:
        """The heads of a layer, in the order in which they are written down."""
        return tuple(line for line in self.lines if line.layer == layer)


def strengths(line: Line, softness: Softness) -> tuple[float, float]:
    """The margin over the sink and the nats of one unit of match, for this head.

    A head that is graded by design keeps its margin under its own match, however hard the others are.
    """
    if line.grammar:
        return HARD_MARGIN, HARD_MATCH
    if line.unit is None:
        return softness.m, softness.d
    return min(softness.m, line.unit * line.right - GRADED_GAP), line.unit


def gain(line: Line, softness: Softness) -> float:
    """The factor of a head's output that compensates for the sink's share of attention."""
    return 1.0 + math.exp(-strengths(line, softness)[0])


def threshold(line: Line, softness: Softness, distance: float) -> float:
    """The nats subtracted from every key but the first token: the right key's conditions less the margin.

    `distance` is the nats of the right distance.
    """
    margin, match = strengths(line, softness)
    conditions = GATE + (distance if line.distances else 0.0)
    return conditions + (match * line.right if line.where or line.prefer else 0.0) - margin


def expression(text: str) -> Expression:
    """Parse `pair + 2 slot - found[1]` into gains and names."""
    matches = re.findall(r"([+-]?)\s*(\d+(?:\.\d+)?)?\s*([a-z_]+(?:\[\d+\])*)\s*", text)
    if not matches or "".join("".join(piece) for piece in matches) != text.replace(" ", ""):
        raise WiringError(f"cannot read the expression {text!r}; write sums such as `pair + 2 slot - found[1]`")
    return tuple((float(f"{sign}{number or 1}"), name) for sign, number, name in matches)
