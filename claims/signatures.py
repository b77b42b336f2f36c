"""The two signatures of section 5, matching and key dominance, and their verdicts over conventions.

Q, K and QK are the mean dR of the shift of the query, of both kinds of keys, and of both together. The two signatures
exclude each other under one convention: matching leaves less than half of K, key dominance more.

A convention is one consistent choice for Q, K and QK; what the paper leaves open is the token at which answers are
read. It is chosen once for all rows and all models of a run. The first, as released, is judged at 4 % and all others
share 1 %. A row is REPLICATED if some convention shows its signature and none surely shows the other one; if one shows
the one and another the other, the row is open. It is NOT REPLICATED if every convention refutes it, each at 5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from claims.catalogue import GEMMA_2, GEMMA_3
from claims.conventions import NO_OP_GATE, with_attention, with_shared_keys
from claims.shifts import mean_exceeds, mean_is_above, mean_is_not_positive
from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import SOURCE
from rebinding.experiments.binding.summary import controls, shift
from rebinding.paper.claim import LEVEL, Claim
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed, Verdict, invalid
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.outcome import ConventionVerdict
from rebinding.verdicts.quantities import with_quantities
from rebinding.verdicts.sentences import Part, all_of, any_of

CANCELS = "binding.qk_cancels"
"""The sentence that the paper says of the Gemmas; parts that the text cites for one of them belong to its row."""
SHIFTS = {"queries": "q", "keys": "k_both", "both": "qk"}
"""The shifts of a signature, by the name on the page."""
OF_RELEASED = 0.8
"""The share of the level at which the released convention is judged; all others share the rest."""
Parts: TypeAlias = Callable[[Claim, Study, Evidence], dict[str, Part]]
"""The parts of a signature under one convention."""


def matching(claim: Claim, study: Study, evidence: Evidence) -> dict[str, Part]:
    """Each shift alone turns attention, both together undo more than half of either, and little is left on both sides.

    Where the paper asserts it of the model, each alone must turn attention at all; elsewhere, by the margin. Directions
    are means over finitely many prompts, and the noise in the query's direction is the noise in the keys'. So in a
    model without slots both together turn attention by an amount of order 1 / prompts, always the same way, and each
    alone by nothing.
    """
    margin = claim.margin("dR")
    is_asserted = study.paper_model in claim.models and claim.sentence == CANCELS
    single, both = {name: shift(evidence, name, "dR") for name in ("q", "k_both")}, shift(evidence, "qk", "dR")
    needed = 0.0 if is_asserted else margin
    parts: dict[str, Part] = {f"attention by {name}": mean_is_above(values, needed) for name, values in single.items()}
    parts |= {
        f"less than half of {name} is left": mean_exceeds(values / 2, both, 0.0) for name, values in single.items()
    }
    parts["little is left toward slot j"] = _is_small(both, single, margin)
    parts["little is left toward slot i"] = _is_small(-both, single, margin)
    if is_asserted and study.paper_model == GEMMA_2:
        near = {control: _is_nearer(both, single, shift(evidence, control, "dR")) for control in controls(evidence)}
        parts["nearer to random"] = partial(any_of, claim.kind, near)
    if is_asserted and study.paper_model == GEMMA_3:
        parts["answer by both"] = mean_is_not_positive(shift(evidence, "qk", "dlogit"), claim.margin("dlogit"))
    return parts


def _is_small(both: Array, single: Mapping[str, Array], margin: float) -> Part:
    """One side of "small": below the margin, or below a quarter of either shift alone. The quarter is ours."""
    quarters = {f"of {name}": mean_exceeds(values / 4, both, 0.0) for name, values in single.items()}
    quarter = partial(all_of, "ordering", quarters)
    return partial(any_of, "ordering", {"margin": mean_is_not_positive(both, margin), "quarter": quarter})


def _is_nearer(both: Array, single: Mapping[str, Array], random: Array) -> Part:
    """Both together lie nearer to a random shift than half way to either shift alone; the mean over random draws."""
    mean = random.mean(axis=0) if random.ndim > both.ndim else random
    halves = {f"of {name}": mean_exceeds((values + mean) / 2, both, 0.0) for name, values in single.items()}
    return partial(all_of, "ordering", halves)


def key_dominated(claim: Claim, study: Study, evidence: Evidence) -> dict[str, Part]:
    """Keys lead the query's shift, which is weak, and more than half of their own shift remains.

    Both signs of the query are tested, since the absolute value of a mean is biased. The half is ours.
    """
    margin = claim.margin("dR")
    query, keys, both = (shift(evidence, name, "dR") for name in ("q", "k_both", "qk"))
    return {
        "keys over query": mean_exceeds(keys, query, margin),
        "keys over query, reversed": mean_exceeds(keys, -query, margin),
        "query below half": mean_exceeds(keys / 2, query, 0.0),
        "query below half, reversed": mean_exceeds(keys / 2, -query, 0.0),
        "both together": mean_is_above(both, margin),
        "more than half remains": mean_exceeds(both, keys / 2, 0.0),
    }


def levels(names: tuple[str, ...], level: float = LEVEL) -> dict[str, float]:
    """The level at which each convention may replicate; the first is the released one."""
    first, *others = names
    if not others:
        return {first: level}
    return {first: OF_RELEASED * level, **{name: (1 - OF_RELEASED) * level / len(others) for name in others}}


def judge_signature(claim: Claim, study: Study, *, own: Parts, other: Parts) -> Verdict:
    """The verdict on a signature over all conventions, with what each of them shows."""
    readouts = study.at_readouts(claim)
    shown: dict[str, Verdict] = {}
    refuted: dict[str, Verdict] = {}
    outcomes: list[ConventionVerdict] = []
    judged: dict[str, Evidence] = {}
    for name, level in levels(tuple(readouts), claim.level).items():
        try:
            evidence = readouts[name].binding(claim)
            parts, others = own(claim, readouts[name], evidence), other(claim, readouts[name], evidence)
        except GateFailed as failed:
            if failed.gate.name == NO_OP_GATE:  # a fault under any convention
                raise
            shown[name] = invalid(claim.kind, failed.gate.name, failed.gate.detail)
            continue
        judged[name] = evidence
        shown[name] = all_of(claim.kind, parts, level=level)
        refuted[name] = all_of(claim.kind, parts, level=claim.level)
        shows_other = all_of(claim.kind, others, level=level).outcome == "REPLICATED"
        p_value = refuted[name].p_value if refuted[name].outcome == "NOT REPLICATED" else None
        outcomes.append(ConventionVerdict(name, shown[name].outcome, shows_other, p_value))
    verdict = replace(combine(shown, refuted, outcomes), conventions=tuple(outcomes))
    if judged:
        first = next(iter(judged.values()))
        deciding = judged.get(verdict.part[0], first) if verdict.part else first
        shifts = {name: shift(deciding, condition, "dR") for name, condition in SHIFTS.items()}
        verdict = with_quantities(with_text(verdict, first), "dR", shifts)
    return with_shared_keys(claim, with_attention(claim, verdict, readouts), study)


def combine(shown: Mapping[str, Verdict], refuted: Mapping[str, Verdict], outcomes: list[ConventionVerdict]) -> Verdict:
    """One verdict: that of the deciding convention."""
    if len(shown) == 1:
        (verdict,) = shown.values()
        return verdict
    replicated = [name for name, verdict in shown.items() if verdict.outcome == "REPLICATED"]
    others = [outcome.name for outcome in outcomes if outcome.shows_other]
    if replicated and others:
        reason = (
            f"conventions disagree: {', '.join(replicated)} shows it, {', '.join(others)} the other family's signature"
        )
        return replace(
            _named(replicated[0], shown), outcome="INCONCLUSIVE", reason=reason, unidentified=True, p_value=None
        )
    if replicated:
        return _named(replicated[0], shown)
    if not refuted:
        return _named(next(iter(shown)), shown)
    failing = [name for name, verdict in refuted.items() if verdict.outcome == "NOT REPLICATED"]
    if len(failing) == len(shown):
        return _named(max(failing, key=lambda name: refuted[name].p_value or 0.0), refuted)
    open_ones = [name for name in shown if name not in failing]
    waiting = next((name for name in open_ones if name in refuted), open_ones[0])
    verdict = _named(waiting, refuted if waiting in refuted else shown)
    return verdict if not failing else replace(verdict, outcome="INCONCLUSIVE", unidentified=True, gate=None)


def _named(name: str, verdicts: Mapping[str, Verdict]) -> Verdict:
    verdict = verdicts[name]
    reason = f"the paper does not identify the convention; {name}: {verdict.reason}"
    return replace(verdict, reason=reason, part=(name, *verdict.part))


def with_text(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict; its reason also gives Q+K as the text has it, which cannot tell the two signatures apart: under
    exact matching it leaves half of the keys' shift, as it does under pure key dominance."""
    condition = dict(SOURCE)["qk"]
    if condition not in evidence.settings["conditions"]:
        return verdict
    mean = float(shift(evidence, condition, "dR").mean())
    return replace(verdict, reason=f"{verdict.reason}; with the keys of slot i alone Q+K turns attention by {mean:.2g}")
