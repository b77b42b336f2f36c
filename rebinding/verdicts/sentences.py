"""Sentences that say several things at once.

A part is a rule that still waits for its error level: a call of `rebinding.verdicts` without `level`. "All of these"
is REPLICATED if every part is, each at the full level (all would have to err at once), and NOT REPLICATED if one part
is at level / parts (one error is enough). "Any of these" is its mirror image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from rebinding.paper.claim import LEVEL, Rule
from rebinding.verdicts import Outcome, Verdict


class Part(Protocol):
    """A rule with its data, such as `partial(effect, values, margin=0.2)`."""

    def __call__(self, *, level: float) -> Verdict: ...


def all_of(kind: Rule, parts: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence whose parts must all hold."""
    return _together(kind, parts, level, every="REPLICATED", one="NOT REPLICATED")


def any_of(kind: Rule, parts: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence of which one part must hold."""
    return _together(kind, parts, level, every="NOT REPLICATED", one="REPLICATED")


def most_of(kind: Rule, parts: Mapping[str, Part], share: float, *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence of which a share of the parts must hold, k of n.

    REPLICATED if k parts are. If only k - 1 were true, one error among the n - k + 1 others would do it, so each part
    is judged at level / (n - k + 1). NOT REPLICATED if more than n - k parts fail. If k were true, one error among
    these would do it, so there each is judged at level / k. "All" and "any" are the ends of this, k = n and k = 1.
    """
    if not parts:
        raise ValueError("a sentence without parts; give at least one rule")
    need = math.ceil(share * len(parts) - 1e-9)  # 0.9 * 10 is 9 and not 10
    holding = {name: part(level=level / (len(parts) - need + 1)) for name, part in parts.items()}
    failing = {name: part(level=level / need) for name, part in parts.items()}
    broken = {name: verdict for name, verdict in holding.items() if not verdict.judged}
    if broken:
        return _named(kind, *min(broken.items()))
    held = sum(verdict.outcome == "REPLICATED" for verdict in holding.values())
    failed = sum(verdict.outcome == "NOT REPLICATED" for verdict in failing.values())
    outcome: Outcome = "INCONCLUSIVE"
    if held >= need:
        outcome = "REPLICATED"
    elif failed > len(parts) - need:
        outcome = "NOT REPLICATED"
    name, verdict = _telling(failing)
    counts = f"{held} of {len(parts)} parts surely hold and {failed} surely fail, {need} must hold; least of all"
    decisive = _named(kind, name, verdict)
    decisive = replace(decisive, outcome=outcome, reason=f"{counts} {decisive.reason}", p_value=None)
    return decisive if outcome == "INCONCLUSIVE" else replace(decisive, needed_n=None, unidentified=False)


def under_conventions(kind: Rule, conventions: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence that the paper may have judged under any of several conventions.

    As of "any of these", but conventions under which it cannot be judged are left out while there are others. An open
    verdict is `unidentified` if the sentence is refuted under some of them: then the answer depends on which it was.
    """
    verdicts = {name: part(level=level) for name, part in conventions.items()}
    judged = {name: part for name, part in conventions.items() if verdicts[name].judged}
    found = any_of(kind, judged or conventions, level=level)
    refuted = [name for name in judged if verdicts[name].outcome == "NOT REPLICATED"]
    reason = f"the paper does not identify the convention; {found.reason}" if judged else found.reason
    return replace(found, reason=reason, unidentified=found.outcome == "INCONCLUSIVE" and bool(refuted))


def _together(kind: Rule, parts: Mapping[str, Part], level: float, *, every: Outcome, one: Outcome) -> Verdict:
    if not parts:
        raise ValueError("a sentence without parts; give at least one rule")
    plain = {name: part(level=level) for name, part in parts.items()}
    strict = {name: part(level=level / len(parts)) for name, part in parts.items()}
    broken = {name: verdict for name, verdict in plain.items() if not verdict.judged}
    if broken:
        return _named(kind, *min(broken.items()))
    p_value = _p_value(plain, strict, every)
    sure = {name: verdict for name, verdict in strict.items() if verdict.outcome == one}
    waiting = {name: verdict for name, verdict in plain.items() if verdict.outcome != every}
    name, verdict = _telling(sure or waiting or plain)
    if not sure and waiting and verdict.outcome == one:  # sure alone, not sure as one of several
        verdict = replace(strict[name], outcome="INCONCLUSIVE")
    return replace(_named(kind, name, verdict), p_value=p_value)


def _telling(verdicts: Mapping[str, Verdict]) -> tuple[str, Verdict]:
    """The part that is nearest to being rejected, whatever the order in which the parts are said."""
    name = min(verdicts, key=lambda one: (1.0 if (p := verdicts[one].p_value) is None else p, one))
    return name, verdicts[name]


def _p_value(plain: Mapping[str, Verdict], strict: Mapping[str, Verdict], every: Outcome) -> float | None:
    """Of the test that rejects the sentence: "all" falls with any of its parts, "any" with all of them."""
    if every == "REPLICATED":
        found = [verdict.p_value for verdict in strict.values() if verdict.p_value is not None]
        return min(1.0, len(plain) * min(found)) if found else None
    known = [verdict.p_value for verdict in plain.values() if verdict.p_value is not None]
    return max(known) if known else None


def _named(kind: Rule, name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, kind=kind, reason=f"{name}: {verdict.reason}", part=(name, *verdict.part))
