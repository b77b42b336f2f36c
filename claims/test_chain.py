"""Section 4.1: path patching finds the heads of the circuit again, and its groups form a chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from claims.catalogue import row
from claims.circuits import compare_with_published_group, lowers_the_lead
from claims.conventions import judge_candidates
from rebinding.experiments.circuit.summary import gate_other_heads
from rebinding.paper.circuit import Circuit
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.testing import rows
from rebinding.verdicts import Verdict, group_present, guarded, not_applicable
from rebinding.verdicts.gates import TIMES_THE_FLOOR

SECTION = "circuit"
LINK: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "kind": "effect",
    "metrics": ("contribution",),
    "statistic": "fall of the answer's lead over the other objects, in logits, mean over the group's heads, and the"
    " same less that of random sets of as many other heads in each layer; each above what the released code prunes at,"
    " and above twice the noise floor",
    "n": 300,
}
UNSEEN = "on prompts that discovery did not see"
AS_PUBLISHED = f"path patching {UNSEEN}; published stories, whole KV groups, any kind of noise"
AS_CONTROLLED = f"path patching {UNSEEN}; crossed stories, independent noise, other heads frozen, single query heads"
CONTROLLED_LINK: dict[str, Any] = {
    "metrics": ("dlogit",),
    "statistic": "fall of the answer's lead over the other objects, in logits, summed over the group's heads, and the"
    " same less that of random sets of as many other heads in each layer",
}


@rows((
    Claim(f"circuit.heads_found_again.{group}",
          f"Path patching finds heads of the published group {group} again, beyond chance.",
          "the table of heads of the four models", "set", ("share",),
          "overlap of the heads that a stage keeps with the published group, of a group of one or two heads the sum of"
          " their ranks among all senders of the stage; chance is a blind draw with as many heads in each layer; beside"
          " it our own selections on either half of the prompts, receivers held",
          "all layers and heads; published naming order, whole KV groups; one of three kinds of noise, other heads"
          " frozen or not, D received by keys and values or by the query", n=100, group=group, long=True)
    for group in "ABCDE"),
    controlled={
        "where": "all layers and heads; counterbalanced prompts, independent noise, everything else frozen; scored by"
        " the answer's lead in logits",
    })  # fmt: skip
def test_the_published_heads_are_found_again(claim: Claim, study: Study) -> Verdict:
    group = str(claim.group)
    if study.has_discovered_circuit:
        return not_applicable(
            claim.kind, "the circuit was discovered on this model; there is no published one to compare it with"
        )
    published = study.circuit.group(group)
    if not published and study.circuit_from == "published":
        return not_applicable(claim.kind, f"the paper's group {group} is empty on this model")
    discoveries = study.discoveries(claim)

    def judge(name: str, level: float) -> Verdict:
        return compare_with_published_group(claim, study, group, name, level)

    return guarded(claim.kind, [group_present(group, published)], lambda: judge_candidates(claim, judge, discoveries))


def links() -> Iterator[Claim]:
    """The published rows of all links, then the controlled ones."""
    rows_of_links: tuple[tuple[str, str, str, tuple[str, ...], dict[str, Any]], ...] = (
        ("A_logits", "Group A writes the answer.", "A at the readout to the logits", ("A",), {}),
        ("B_q_A", "Group B tells A's queries where to look.", "B to the q of A, at the readout", ("B", "A"), {}),
        ("C_v_B", "Group C hands B its values.", "C to the v of B, at the question's box", ("B", "C"), {}),
        ("D_kv_C", "Group D is read by C's keys and values at the swap.",
         "D to k and v of C, at the partner in the swap", ("C", "D"),
         {"source": "ours, the alternative to the paper's D by Q to C", "models": ()}),
        ("E_v_D", "Group E hands D its values.", "E to the v of D, at the partner in the context", ("D",), {}),
    )  # fmt: skip
    for where, is_controlled in ((f"{AS_PUBLISHED}, other heads frozen or not", False), (AS_CONTROLLED, True)):
        for name, statement, place, needs, changes in rows_of_links:
            claim = Claim(f"circuit.chain.{name}", statement, where=f"{place}; {where}", group=name[0], needs=needs,
                          **(LINK | changes))  # fmt: skip
            yield claim.controlled(**CONTROLLED_LINK) if is_controlled else claim


@rows(links())
def test_every_link_of_the_chain(claim: Claim, study: Study) -> Verdict:
    if not study.circuit.group(str(claim.group)):
        return not_applicable(claim.kind, f"group {claim.group} of this circuit is empty, so there is no sender")
    return judge_link(claim, study, str(claim.group))


@row("circuit.chain.D_q_C", "Group D acts on C's queries.",
     group="D", needs=("C", "D"),
     where=f"D to the q of C, at the question's box; {AS_PUBLISHED}, nothing frozen (frozen, nothing carries a value"
     " from one token to another, and the effect is exactly 0)", **LINK)  # fmt: skip
def test_d_acts_on_the_queries_of_c(claim: Claim, study: Study) -> Verdict:
    return judge_link(claim, study, "D literal")


def judge_link(claim: Claim, study: Study, stage: str) -> Verdict:
    """The group's heads send more to the receivers of a stage than random heads of their layers do."""
    senders = Circuit(study.circuit.groups[str(claim.group)])
    margin = claim.margin()
    if claim.procedure == "published":  # its margin is small
        margin = max(margin, TIMES_THE_FLOOR * study.noise_floor)
    return guarded(
        claim.kind,
        [gate_other_heads(senders, study.heads)],
        lambda: lowers_the_lead(claim, study, study.links(claim, stage), str(claim.group), margin),
    )
