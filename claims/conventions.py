"""Rows of sections 4.2 and 5 under every convention that they may have been, and the heads of B on which they rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps

from claims.catalogue import Test
from claims.parts import of_studies
from rebinding.evidence import Evidence
from rebinding.experiments.binding.candidates import candidates
from rebinding.experiments.binding.renamed import Renamed
from rebinding.experiments.binding.slots import attention_on_slots, share_of_examples
from rebinding.experiments.roles.request import candidate_conventions
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import RolesConventions
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict
from rebinding.verdicts.gates import LEAST_MASS


def of_code_and_text(test: Test) -> Test:
    """A row of section 4.2: at every token that may have been read, and as the text has it.

    The text describes another experiment (what is exchanged, where, and which way the answer goes), so it is a
    candidate as a whole.
    """

    @wraps(test)
    def judged(claim: Claim, study: Study) -> Verdict:
        conventions = study.procedure(claim).roles
        readouts, (_, *others) = study.at_readouts(conventions), candidate_conventions(conventions)
        if not others:
            return of_studies(claim, test, readouts)
        first, *elsewhere = readouts
        studies = {name_of(conventions): readouts[first], **{place: readouts[place] for place in elsewhere}}
        texts = {name_of(other): replace(readouts[first], roles_conventions=other) for other in others}
        return of_studies(claim, test, studies | texts)

    return judged


def name_of(conventions: RolesConventions) -> str:
    """What sets conventions of section 4.2 apart."""
    return f"{conventions.places} places, {conventions.direction} direction"


def under_every_convention(*conditions: str) -> Callable[[Test], Test]:
    """A row that reads these conditions: at every token that may have been read, and as text and code have it.

    One convention differs at a time. A claim with a condition of its own reads that one.
    """

    def repeated(test: Test) -> Test:
        @wraps(test)
        def judged(claim: Claim, study: Study) -> Verdict:
            conventions = study.procedure(claim).binding
            readouts = study.at_readouts(conventions)
            read = conditions if claim.condition is None else (claim.condition,)
            studies = with_candidates(readouts, candidates(conventions, read))
            return with_attention(claim, of_studies(claim, test, studies), readouts)

        return judged

    return repeated


def with_candidates(readouts: Mapping[str, Study], choices: Mapping[str, Renamed]) -> Mapping[str, Study]:
    """A study of each candidate: the first choices at every token, and the others at the first token."""
    (name, first), *others = choices.items()
    (place, study), *elsewhere = ((place, as_candidate(study, first)) for place, study in readouts.items())
    released = {name if others else place: study}
    return {**released, **dict(elsewhere), **{other: as_candidate(study, renamed) for other, renamed in others}}


def as_candidate(study: Study, candidate: Renamed) -> Study:
    """The study with what one candidate shifts."""
    return replace(study, candidate=candidate) if candidate else study


def states_attention(test: Test) -> Test:
    """A row that only reports, with the heads on which it rests."""

    @wraps(test)
    def stated(claim: Claim, study: Study) -> Verdict:
        readouts = study.at_readouts(study.procedure(claim).binding)
        return with_attention(claim, test(claim, study), readouts)

    return stated


def with_attention(claim: Claim, verdict: Verdict, readouts: Mapping[str, Study]) -> Verdict:
    """A verdict that says of every head of B how much of its attention the slots have, and how often slot i leads."""
    if not verdict.judged:
        return verdict
    stated = []
    for place, study in readouts.items():
        try:
            text = attention_by_head(study.binding(claim))
        except GateFailed:  # what may not be looked at there says nothing
            continue
        stated.append(f"{place}, {text}" if len(readouts) > 1 else text)
    return replace(verdict, reason="; ".join((verdict.reason, *stated)))


def attention_by_head(evidence: Evidence) -> str:
    """The attention of every head on slots i and j before any edit, and the heads that are left out."""
    table = attention_on_slots(evidence)
    heads = [f"{line.layer}.{line.head} {line.share:.2g} ({line.leads:.0%})" for line in table.itertuples()]
    text = f"attention on slots i and j before any edit (and how often slot i leads) by head of B: {', '.join(heads)}"
    counted = set(zip(table["layer"], table["head"], strict=True))
    left_out = [f"{layer}.{head}" for layer, head in evidence.settings.get("heads", ()) if (layer, head) not in counted]
    return f"{text}; left out with less than {LEAST_MASS:.0%}: {', '.join(left_out)}" if left_out else text


def led_by_slot_i(evidence: Evidence) -> tuple[float, float]:
    """How often slot i leads before any edit: of heads and prompts, and of prompts with the heads together."""
    return float(attention_on_slots(evidence)["leads"].mean()), share_of_examples(evidence)
