"""What became of the claims on a model, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rebinding.verdicts import Verdict, family
from rebinding.verdicts.judgement import Judgement
from rebinding.verdicts.standing import Twice, in_words, judged_twice

FAILED = ("NOT REPLICATED", "INVALID")
MARKS = {"REPLICATED": "✓", "NOT REPLICATED": "✗", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–"}


@dataclass(frozen=True)
class Failure:
    """Claims that failed in the same way, for the same reason."""

    verdict: str
    gate: str | None
    why: str
    as_expected: bool
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """A model's claims counted; those that only report a property are in no count."""

    sentence: str
    agreement: str
    luck: str
    failed: int
    failures: tuple[Failure, ...]
    differing: tuple[Judgement, ...]
    twice: tuple[Twice, ...]
    """The sentences that were judged as published and controlled."""

    @property
    def standings(self) -> str | None:
        """How many of these are robust, artifacts, hidden, refuted."""
        return in_words(self.twice) if self.twice else None


def summarise(claims: Sequence[Judgement], *, planted: bool) -> Summary:
    """The sentence at the top of the page, and what stands behind it."""
    differing = tuple(one for one in claims if not one.as_expected)
    return Summary(
        sentence(claims),
        agreement(claims, differing, planted=planted),
        luck(claims),
        sum(one.verdict in FAILED for one in claims),
        failures(claims),
        differing,
        tuple(judged_twice(claims)),
    )


def failures(claims: Sequence[Judgement]) -> tuple[Failure, ...]:
    """What failed, by reason: first what was not expected, then what was not replicated, then what could not be run."""
    together: dict[tuple[bool, int, str, str, str], list[str]] = {}
    for one in claims:
        if one.verdict in FAILED:
            kind = FAILED.index(one.verdict)
            key = (one.as_expected, kind, one.gate or "", one.verdict, one.because or one.reason)
            together.setdefault(key, []).append(one.id)
    listed = sorted(together.items(), key=lambda item: item[0][:3])
    return tuple(
        Failure(verdict, gate or None, why, expected, tuple(ids)) for (expected, _, gate, verdict, why), ids in listed
    )


def sentence(claims: Sequence[Judgement]) -> str:
    """'27 of 31 claims replicated, 2 not, 2 inconclusive', and how many do not apply."""
    counts = Counter(one.verdict for one in claims if one.kind != "report")
    away, reports = counts.pop("NOT APPLICABLE", 0), sum(one.kind == "report" for one in claims)
    parts = [f"{counts['REPLICATED']} of {plural(counts.total(), 'claim')} replicated"]
    parts += [f"{counts[name]} {word}" for name, word in WORDS.items() if counts[name]]
    left = [f"{away} not applicable"] if away else []
    left += [f"{reports} only reported"] if reports else []
    return ", ".join(parts) + (f" ({' and '.join(left)} besides)" if left else "") + "."


WORDS = {"NOT REPLICATED": "not", "INCONCLUSIVE": "inconclusive", "INVALID": "invalid"}


def agreement(claims: Sequence[Judgement], differing: Sequence[Judgement], *, planted: bool) -> str:
    """How the verdicts compare with what was expected, where something was."""
    if planted:
        same = len(claims) - len(differing)
        told = f"{same} of {plural(len(claims), 'verdict')} are as planted"
        return (
            f"{told}; {plural(len(differing), 'differs', 'differ')} from what was planted." if differing else f"{told}."
        )
    asserted = [one for one in claims if one.expected is not None]
    if not asserted:
        return "The paper asserts nothing of this model: every verdict is a property that is reported."
    came = sum(one.as_expected for one in asserted)
    return f"Of {plural(len(asserted), 'claim')} that the paper makes of this model {came} replicated."


def luck(claims: Sequence[Judgement]) -> str:
    """What chance alone would do to so many claims, and what still stands when it is discounted."""
    found = family({one.id: as_verdict(one) for one in claims})
    if not found.judged:
        return "No claim could be weighed."
    told = f"{plural(found.judged, 'claim')} could be weighed; luck alone would reject at most"
    told += f" {found.expected_false_alarms:.1f} of them. {len(found.rejected)} came out not replicated"
    return (
        f"{told}, {len(found.surviving)} of these surely so after Holm's correction." if found.rejected else f"{told}."
    )


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its word."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def as_verdict(one: Judgement) -> Verdict:
    """What the global statement needs of a judgement."""
    fields: dict[str, Any] = {"kind": one.kind, "outcome": one.verdict, "reason": one.reason, "p_value": one.p_value}
    return Verdict(**fields)


def standing(one: Judgement, *, planted: bool) -> str:
    """What a verdict means beside what was expected: in words, so that 'not' is not taken for an error."""
    if one.expected is None:
        return "reported, not asserted by the paper"
    if planted:
        return "as planted" if one.as_expected else f"differs from what was planted: {one.expected}"
    return "as the paper says" if one.as_expected else "the paper asserts it"
