"""Parts of sentences that several tests of claims say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Literal, TypeAlias, TypeVar

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import by_word, of_circuit, of_random
from rebinding.paper.claim import LEVEL, Claim
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict, invalid, ordering, value_unidentified
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import Part

Test: TypeAlias = Callable[[Claim, Study], Verdict]

SHARES: Support = (-1.0, 1.0)
"""What the difference of two shares cannot leave."""


def over_random(claim: Claim, evidence: Evidence, words: Sequence[str] | None = None) -> Part:
    """Hits of the circuit against those of random ones on the same prompts; or by word, where each prompt has one."""
    mine, random = of_circuit(evidence, "circuit", "hit").astype(float), of_random(evidence, "hit")
    if words is not None:
        mine, random = (by_word(hits, words) for hits in (mine, random))
    return partial(ordering, mine, random, unit="nested", support=SHARES, margin=claim.margin("accuracy"))


Name = TypeVar("Name", bound=str)


def of_candidates(
    judge: Callable[[Name, float], Verdict], candidates: Collection[Name], level: float = LEVEL
) -> Verdict:
    """The verdict under every convention that it may have been; with more than one of them, unidentified."""
    if len(candidates) == 1:
        return judge(next(iter(candidates)), level)
    return value_unidentified({name: judge(name, level / len(candidates)) for name in candidates})


def at_every_readout(section: Literal["roles", "binding"]) -> Callable[[Test], Test]:
    """The row of a section at every token that it may have been about, and unidentified where that is not known."""

    def repeated(test: Test) -> Test:
        @wraps(test)
        def judged(claim: Claim, study: Study) -> Verdict:
            places = study.at_readouts(getattr(study.procedure(claim), section))

            def there(name: str, level: float) -> Verdict:
                try:
                    return test(replace(claim, level=level), places[name])
                except GateFailed as failed:  # what may not be looked at here may be looked at there
                    return invalid(claim.kind, failed.gate.name, failed.gate.detail)

            return of_candidates(there, places, claim.level)

        return judged

    return repeated
