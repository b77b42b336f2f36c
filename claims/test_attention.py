"""Section 4.1: what groups of the circuit look at."""

from __future__ import annotations

from functools import partial

from claims.parts import SHARES
from claims.rows import judges
from rebinding.experiments.attention.summary import by_token, even
from rebinding.paper.claim import LEVEL, Claim
from rebinding.paper.numbers import Group
from rebinding.paper.rows.attention import A_LOOKS, C_LOOKS, twice
from rebinding.study.attention import looked
from rebinding.study.study import Study
from rebinding.verdicts import Verdict, ordering
from rebinding.verdicts.sentences import Part, all_of, any_of

EARLIER = ("swap_asked", "swap_partner", "context_partner")
"""Labels of "the appropriate earlier box": the text does not say which it is, and the old statement's is not."""


def looks_at(claim: Claim, study: Study, group: Group, token: str, *, level: float = LEVEL) -> Verdict:
    """A group looks at a token more than evenly, and more than at any other that has a role."""
    evidence = study.ask(claim, partial(looked, group=group, like=claim.procedure))
    found = by_token(evidence)
    others = {"an even share": even(evidence)} | {name: found[name] for name in found if name != token}
    parts: dict[str, Part] = {
        f"{token} over {name}": partial(ordering, found[token], less, margin=claim.margin(), support=SHARES)
        for name, less in others.items()
    }
    return all_of(claim.kind, parts, level=level)


@judges(*twice(A_LOOKS))
def test_a_looks_at_the_answers_object(claim: Claim, study: Study) -> Verdict:
    return looks_at(claim, study, "A", "context_partner_object")


@judges(*twice(C_LOOKS))
def test_c_looks_at_an_earlier_box(claim: Claim, study: Study) -> Verdict:
    return any_of(claim.kind, {token: partial(looks_at, claim, study, "C", token) for token in EARLIER})
