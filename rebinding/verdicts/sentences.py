"""Sentences with several parts: all of them, any of them, or most of them must hold.

A part is a rule without its error level: a partial call of `rebinding.verdicts`. "All of these" is REPLICATED if every
part is, each at the full level (all would have to err at once), and NOT REPLICATED if one part is, at level / parts
(one error is enough). "Any of these" is its mirror image.
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
    return _combine(kind, parts, level, unanimous="REPLICATED", single="NOT REPLICATED")


def any_of(kind: Rule, parts: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence that holds if one part holds."""
    return _combine(kind, parts, level, unanimous="NOT REPLICATED", single="REPLICATED")


def most_of(kind: Rule, parts: Mapping[str, Part], share: float, *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence that holds if a share of its parts holds, k of n.

    REPLICATED if k parts are. If only k - 1 were true, one error among the n - k + 1 others would be enough, so each
    part is judged at level / (n - k + 1). NOT REPLICATED if more than n - k parts fail. If k were true, one error among
    these would be enough, so here each part is judged at level / k. "All" is k = n, and "any" is k = 1.
    """
    if not parts:
        raise ValueError("a sentence without parts; give at least one rule")
    need = math.ceil(share * len(parts) - 1e-9)  # 0.9 * 10 is 9 and not 10
    holding = {name: part(level=level / (len(parts) - need + 1)) for name, part in parts.items()}
    failing = {name: part(level=level / need) for name, part in parts.items()}
    broken = {name: verdict for name, verdict in holding.items() if not verdict.judged}
    if broken:
        return _named(kind, *min(broken.items()))
    n_holding = sum(verdict.outcome == "REPLICATED" for verdict in holding.values())
    n_failing = sum(verdict.outcome == "NOT REPLICATED" for verdict in failing.values())
    outcome: Outcome = "INCONCLUSIVE"
    if n_holding >= need:
        outcome = "REPLICATED"
    elif n_failing > len(parts) - need:
        outcome = "NOT REPLICATED"
    name, verdict = _most_rejected(failing)
    counts = f"{n_holding} of {len(parts)} parts surely hold and {n_failing} surely fail, {need} must hold; the weakest"
    decisive = _named(kind, name, verdict)
    p_values = sorted(1.0 if (p := verdict.p_value) is None else p for verdict in failing.values())
    p_value = min(1.0, need * p_values[len(parts) - need])  # more than n - k parts fail, each at level / k
    decisive = replace(decisive, outcome=outcome, reason=f"{counts} is {decisive.reason}", p_value=p_value)
    return decisive if outcome == "INCONCLUSIVE" else replace(decisive, needed_n=None, unidentified=False)


def under_conventions(kind: Rule, conventions: Mapping[str, Part], *, level: float = LEVEL) -> Verdict:
    """The verdict of a sentence that the paper may have judged under any of several conventions.

    Like `any_of`, but it skips conventions under which the sentence cannot be judged, while there are others. While a
    gate fails under some convention it refutes nothing: under that one the sentence may hold. An open verdict is
    `unidentified` if some conventions refute the sentence: the answer then depends on the convention.
    """
    verdicts = {name: part(level=level) for name, part in conventions.items()}
    judged = {name: part for name, part in conventions.items() if verdicts[name].judged}
    verdict = any_of(kind, judged or conventions, level=level)
    refuted = [name for name in judged if verdicts[name].outcome == "NOT REPLICATED"]
    reason = f"the paper does not identify the convention; {verdict.reason}" if judged else verdict.reason
    invalid = {name: part for name, part in verdicts.items() if part.outcome == "INVALID"}
    if judged and invalid and verdict.outcome == "NOT REPLICATED":
        gates = ", ".join(f"{name} ({part.gate})" for name, part in invalid.items())
        verdict = replace(verdict, outcome="INCONCLUSIVE", needed_n=None)
        reason = f"not judged under {gates}, and refuted under all others; {reason}"
    return replace(verdict, reason=reason, unidentified=verdict.outcome == "INCONCLUSIVE" and bool(refuted))


def _combine(kind: Rule, parts: Mapping[str, Part], level: float, *, unanimous: Outcome, single: Outcome) -> Verdict:
    """`unanimous` if every part has that outcome; `single` if one part has it at level / parts."""
    if not parts:
        raise ValueError("a sentence without parts; give at least one rule")
    plain = {name: part(level=level) for name, part in parts.items()}
    strict = {name: part(level=level / len(parts)) for name, part in parts.items()}
    broken = {name: verdict for name, verdict in plain.items() if not verdict.judged}
    if broken:
        return _named(kind, *min(broken.items()))
    p_value = _p_value(plain, strict, unanimous)
    sure = {name: verdict for name, verdict in strict.items() if verdict.outcome == single}
    waiting = {name: verdict for name, verdict in plain.items() if verdict.outcome != unanimous}
    name, verdict = _most_rejected(sure or waiting or plain)
    if not sure and waiting and verdict.outcome == single:  # sure by itself, not as one of several
        verdict = replace(strict[name], outcome="INCONCLUSIVE")
    return replace(_named(kind, name, verdict), p_value=p_value)


def _most_rejected(verdicts: Mapping[str, Verdict]) -> tuple[str, Verdict]:
    """The part that is nearest to being rejected; the order of the parts does not matter."""
    name = min(verdicts, key=lambda name: (1.0 if (p := verdicts[name].p_value) is None else p, name))
    return name, verdicts[name]


def _p_value(plain: Mapping[str, Verdict], strict: Mapping[str, Verdict], unanimous: Outcome) -> float | None:
    """The p-value of the test that rejects the sentence: "all" falls with any of its parts, "any" with all of them."""
    verdicts = strict if unanimous == "REPLICATED" else plain
    p_values = [verdict.p_value for verdict in verdicts.values() if verdict.p_value is not None]
    if not p_values:
        return None
    return min(1.0, len(plain) * min(p_values)) if unanimous == "REPLICATED" else max(p_values)


def _named(kind: Rule, name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, kind=kind, reason=f"{name}: {verdict.reason}", part=(name, *verdict.part))
