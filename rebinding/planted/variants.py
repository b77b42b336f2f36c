"""Changed mechanisms, each of which makes some claim false (or true) that the mechanism itself does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from rebinding.planted.wiring import Line, Wiring, WiringError

Change = Callable[[Wiring], Wiring]


@dataclass(frozen=True)
class Variant:
    """A change of a mechanism's lines, the mechanisms it is made for, and what it is for."""

    mechanisms: tuple[str, ...]
    says: str
    change: Change


def vary(wiring: Wiring, mechanism: str, name: str) -> Wiring:
    """The wiring of a variant."""
    fitting = sorted(known for known, variant in VARIANTS.items() if mechanism in variant.mechanisms)
    if name not in fitting:
        raise WiringError(f"{mechanism} has no variant {name!r}; it has {', '.join(fitting) or 'none'}")
    return VARIANTS[name].change(wiring)


def _undeclared(wiring: Wiring) -> Wiring:
    """The same model; the circuit is declared without the head that tells the swap's second label the first."""
    return _edited(wiring, "other", lambda line: [replace(line, group=None, role=None)])


def _only(kind: str) -> Change:
    """The declared head copies objects of a kind, and a head outside the circuit copies the others."""

    def change(wiring: Wiring) -> Wiring:
        def split(line: Line) -> list[Line]:
            other = replace(line, name="backup", look=f"thing - {kind}", group=None, role=None)
            return [replace(line, look=kind), other]

        return _edited(wiring, "copy", split)

    return change


def _bystander(beside: str, logits: float) -> Change:
    """A head outside the circuit that shares a B head's KV head, reads its keys, and adds to the answer."""

    def change(wiring: Wiring) -> Wiring:
        def joined(line: Line) -> list[Line]:
            bystander = Line("bystander", line.layer, "readout", line.look, f"object <- {logits} object",
                             where="want = slot", prefer="0.25 thing", bench=line.bench)  # fmt: skip
            return [line, bystander]

        return _edited(wiring, beside, joined)

    return change


def _veto(wiring: Wiring) -> Wiring:
    """A further B head takes half of the slot of the matching box label away, so box keys work against object keys."""
    veto = Line(
        "veto", 5, "readout", "context", "found <- -0.5 slot", "B", "readout", where="want = slot", bench="veto"
    )
    return replace(wiring, lines=(*wiring.lines, veto))


def _rival(wiring: Wiring) -> Wiring:
    """A head outside the circuit promotes every second object of the vocabulary, whatever is asked."""
    rival = Line("rival", 6, "readout", "odd", "object <- 20 object", bench="rival")
    return replace(wiring, lines=(*wiring.lines, rival))


def _shortcut(wiring: Wiring) -> Wiring:
    """The slot after the asked one is taken, whatever was swapped: right in every prompt of fixed slots."""
    target = "; ".join(f"goal[{(k + 1) % wiring.boxes}] <- slot[{k}]" for k in range(wiring.boxes))
    unread = ("other", "its slot", "other slot", "own")
    kept = replace(wiring, lines=tuple(line for line in wiring.lines if line.name not in unread))

    def simpler(line: Line) -> list[Line]:
        return [replace(line, look="context", where="label = label", prefer="", right=1.0, write=target)]

    return _edited(kept, "pair", simpler)


def _edited(wiring: Wiring, name: str, edit: Callable[[Line], list[Line]]) -> Wiring:
    lines = [new for line in wiring.lines for new in (edit(line) if line.name == name else [line])]
    return replace(wiring, lines=tuple(lines))


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "missing": Variant(("pointer",), "the declared circuit lacks the head that ties the two labels", _undeclared),
        "held_out": Variant(
            ("pointer",),
            "the circuit copies objects of the published train half, another head the rest",
            _only("train"),
        ),
        "held_out_third": Variant(
            ("pointer",), "the same for objects outside the evaluation third", _only("rehearsed")
        ),
        "shared_key": Variant(
            ("pointer",), "a bystander shares the KV head of `match` and adds to the answer", _bystander("match", 4.0)
        ),
        "leak": Variant(
            ("recency",),
            "a bystander shares the KV head of a late head and decides the answer: shifted keys leak to it",
            _bystander("late object", 12.0),
        ),
        "rival": Variant(("pointer",), "a head outside the circuit promotes every second object", _rival),
        "shortcut": Variant(("pointer",), "the swap is ignored and the next slot taken", _shortcut),
        "veto": Variant(("pointer",), "matching box labels work against matching objects", _veto),
    }
)
