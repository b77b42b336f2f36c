"""Checks of a wiring before weights are written; each rule stands for a bug that once made answers wrong.

1. Queries are gated: `at` and `look` name kinds of tokens that exist. A head whose query is not gated fires elsewhere.
2. Nothing short of all conditions reaches the threshold: with any one missing, the sink wins by a margin.
3. What is read has been written: by the embedding, or by a head of a lower layer. What is written is read by some head.
4. A line is named once, no space is called like one of the embedding's, and heads of the declared circuit have a role,
   one for each group.

Two rules need the model's sizes and are checked where these are known: no alias of a distance within the longest prompt
(`check_distances`), and no collision within a KV group (`rebinding.planted.projections`). Prompts and tokenizers
of another template are refused by `rebinding.planted.language`.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from rebinding.planted.language import (
    ALIASES,
    BASE,
    GAP,
    GATE,
    Expression,
    Line,
    Softness,
    Wiring,
    WiringError,
    expression,
    gap,
    strengths,
)

KINDS = frozenset({"start", "marker", "dot", "colon", "letter", "thing", "train", "rehearsed", "odd", "cue", *ALIASES})
"""What may gate a query or a key."""
EMBEDDED = frozenset(BASE) - {"place"}
RESULT = "object"
"""The space that the final norm reads."""
CLEAR = 1.0
"""Nats by which the sink must beat a key that lacks one condition."""


def lint(wiring: Wiring, softness: Softness) -> None:
    """Raise the first fault of a wiring; every message names the head and the way out."""
    _check_names(wiring)
    for line in wiring.lines:
        _check_gates(line)
        _check_partial_sums(line, softness)
    _check_flow(wiring)


def check_distances(frequencies: Tensor, layer: int) -> None:
    """Refuse rotary frequencies under which two distances within the longest prompt are too similar."""
    loss = gap(frequencies)
    if loss < GAP:
        raise WiringError(
            f"layer {layer}: some distance looks like another one ({loss:.2f} of the peak apart, {GAP} needed);"
            " choose another rope_theta or more fast pairs"
        )


def _check_names(wiring: Wiring) -> None:
    twice = [name for name, count in Counter(line.name for line in wiring.lines).items() if count > 1]
    if twice:
        raise WiringError(f"two heads are called {twice[0]!r}; give each its own name")
    clash = sorted({*wiring.spaces} & {*BASE})
    if clash:
        raise WiringError(f"a space is called {clash[0]!r}, like one of the embedding; give it another name")
    roles: dict[str, str] = {}
    for line in wiring.lines:
        if (line.group is None) != (line.role is None):
            raise WiringError(f"head {line.name}: a head of the circuit has a group and a role, any other has neither")
        if line.group and line.role and roles.setdefault(line.group, line.role) != line.role:
            raise WiringError(f"head {line.name}: group {line.group} acts at {roles[line.group]}, not at {line.role}")


def _check_gates(line: Line) -> None:
    for side, text in (("at", line.at), ("look", line.look)):
        foreign = [name for _, name in expression(text) if name not in KINDS] if text else ["nothing"]
        if foreign:
            raise WiringError(
                f"head {line.name}: {side} has to name kinds of tokens ({', '.join(sorted(KINDS))}), not"
                f" {foreign[0]!r}."
                " An ungated query fires at tokens it was not meant for"
            )
    extra = {name for name, _ in line.distances} - {name for _, name in expression(line.at)}
    if extra:
        raise WiringError(
            f"head {line.name}: back gives a distance for {extra.pop()!r}, which is not in at={line.at!r}"
        )


def _check_partial_sums(line: Line, softness: Softness) -> None:
    """The right key is `margin` over the sink; a key without its weakest condition must be under it."""
    margin, match = strengths(line, softness)
    if margin <= 0:
        raise WiringError(f"head {line.name}: the full sum of its conditions is {-margin:g} under the threshold")
    conditions = {"kind of token": GATE}
    if line.distances:
        conditions["distance"] = GATE
    if (line.where or line.prefer) and line.right:  # with right=0 the right key does not need a match
        conditions["match"] = match * line.right
    name, weakest = min(conditions.items(), key=lambda item: item[1])
    if weakest < margin + CLEAR:
        raise WiringError(
            f"head {line.name}: a key without the right {name} still reaches {margin - weakest:g} nats over the"
            f" threshold; let the condition weigh more than {margin + CLEAR:g} (it weighs {weakest:g})"
        )


def _check_flow(wiring: Wiring) -> None:
    """Every expression reads spaces that some lower layer has filled; every space that is filled is read."""
    written: dict[str, int] = {}
    read: set[str] = set()
    for line in sorted(wiring.lines, key=lambda line: line.layer):
        for _, name in _read_by(line):
            space = _space(name, wiring)
            read.add(space)
            if space not in EMBEDDED and written.get(space, line.layer) >= line.layer:
                raise WiringError(f"head {line.name} reads {name!r}, which no head below layer {line.layer} writes")
        for target, _ in line.writes:
            written[_space(target, wiring)] = min(line.layer, written.get(_space(target, wiring), line.layer))
    idle = sorted(set(written) - read - {RESULT})
    if idle:
        raise WiringError(f"nobody reads {idle[0]!r}; take out the head that writes it, or call it a decoy")


def _read_by(line: Line) -> Expression:
    sides = [side for pair in line.matches for side in pair] + [source for _, source in line.writes]
    sides += [expression(text) for text in (line.at, line.look, line.prefer) if text]
    return tuple(part for side in sides for part in side)


def _space(name: str, wiring: Wiring) -> str:
    """The space that a name lies in."""
    name = ALIASES.get(name, name)
    while name not in BASE and name not in wiring.spaces:
        if "[" not in name:
            raise WiringError(f"there is no space {name!r}; there are {', '.join({**BASE, **wiring.spaces})}")
        name = name.rpartition("[")[0]
    return name
