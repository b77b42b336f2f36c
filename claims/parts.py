"""Parts of sentences that several tests of claims share, and verdicts over candidate conventions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from claims.catalogue import Test
from rebinding.evidence import Evidence
from rebinding.experiments.circuit.summary import by_word, of_circuit, of_random, random_sizes
from rebinding.paper.claim import Claim
from rebinding.paper.numbers import PublishedNumber
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict, invalid, ordering, value_unidentified
from rebinding.verdicts.effects import Support
from rebinding.verdicts.sentences import Part, under_conventions

NO_OP_GATE = "edits_change_values"
SHARES: Support = (-1.0, 1.0)
"""The range of a difference of two shares."""


def printed_number(claim: Claim, study: Study) -> PublishedNumber | None:
    """The printed number that a claim compares with; None if the paper prints none for this model."""
    return None if claim.printed is None else study.printed(claim.printed)


def circuit_exceeds_random(
    claim: Claim, evidence: Evidence, words: Sequence[str] | None = None, size: str = ""
) -> Part:
    """Hits of the circuit compared with random circuits on the same prompts; with `words`, averaged by word."""
    circuit, random = of_circuit(evidence, "circuit", "hit").astype(float), of_random(evidence, "hit", size)
    if words is not None:
        circuit, random = (by_word(hits, words) for hits in (circuit, random))
    return partial(ordering, circuit, random, unit="nested", support=SHARES, margin=claim.margin("accuracy"))


Name = TypeVar("Name", bound=str)


def judge_candidates(claim: Claim, judge: Callable[[Name, float], Verdict], candidates: Collection[Name]) -> Verdict:
    """The verdict over all candidate conventions. A printed number may belong to a convention that we do not know, so
    it is never refuted. A sentence is refuted if it fails under all of them."""
    if len(candidates) == 1:
        return judge(next(iter(candidates)), claim.level)
    if claim.kind == "value":
        return value_unidentified({name: judge(name, claim.level / len(candidates)) for name in candidates})
    return under_conventions(
        claim.kind, {name: partial(_at_level, judge, name) for name in candidates}, level=claim.level
    )


def _at_level(judge: Callable[[Name, float], Verdict], name: Name, *, level: float) -> Verdict:
    return judge(name, level)


def judge_studies(claim: Claim, test: Test, studies: Mapping[str, Study]) -> Verdict:
    """The verdict of a row over all candidate conventions, each with a study."""

    def judge(name: str, level: float) -> Verdict:
        try:
            return test(replace(claim, level=level), studies[name])
        except GateFailed as failed:  # another candidate may pass this gate
            if failed.gate.name == NO_OP_GATE:  # this gate is a fault under any convention
                raise
            return invalid(claim.kind, failed.gate.name, failed.gate.detail)

    return judge_candidates(claim, judge, studies)


def judge_random_sizes(claim: Claim, evidence: Evidence, judge: Callable[[str], Part]) -> Verdict:
    """The verdict over the sizes that the paper's random circuits may have had; `judge` gives the rule for a size."""
    sizes = random_sizes(evidence)
    return judge_candidates(claim, lambda name, level: judge(sizes[name])(level=level), sizes)
