"""The appendix on section 5: shifts on the prompts that Llama-3.2-3B answers correctly.

The paper does not define a correct answer. Here it is candidate accuracy: without an edit, slot i's object has the
largest logit of the three objects at the readout token, in the answer tokens of the section.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.catalogue import LLAMA_3B, row
from claims.conventions import printed_number
from claims.shifts import PLACE, mean_is_above, mean_is_zero, unit_of
from rebinding.experiments.binding.summary import correct, difference_of_correct, shift
from rebinding.paper.claim import Claim, Metric
from rebinding.paper.numbers import PublishedNumber
from rebinding.study.study import Study
from rebinding.testing import rows
from rebinding.verdicts import Verdict, not_applicable, value
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.sentences import Part, all_of

SECTION = "binding"
CONDITIONS = {"q": "the query shifted", "k_both": "the keys exchanged", "qk": "both at once"}
METRICS: tuple[Metric, ...] = ("dR", "dlogit")
SOURCE = "the table of correct examples only"
CORRECT: dict[str, Any] = {
    "source": SOURCE,
    "where": f"{PLACE}; correct: unedited, slot i's object has the largest of the three logits where it is read",
    "group": "B",
    "models": (LLAMA_3B,),
}


@row("binding.correct_only.similar",
     "On the prompts that the model answers correctly the shifts do what they do on all.",
     kind="no-effect", metrics=METRICS, statistic="mean over correct examples less the mean over all, of every printed"
     " condition", reads=tuple(CONDITIONS), **CORRECT)  # fmt: skip
def test_correct_examples_are_like_all(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    is_correct = correct(evidence, "q")
    parts: dict[str, Part] = {
        f"{condition} {name}": mean_is_zero(
            difference_of_correct(shift(evidence, condition, name), is_correct), claim.margin(name)
        )
        for condition in CONDITIONS
        for name in METRICS
    }
    return all_of(claim.kind, parts, level=claim.level)


@row("binding.correct_only.stays_positive",
     "On the prompts that the model answers correctly query and keys together still turn attention.",
     kind="effect", metrics=("dR",), statistic="mean dR over correct examples", reads=("qk",), **CORRECT)  # fmt: skip
def test_both_together_turn_correct_examples(claim: Claim, study: Study) -> Verdict:
    evidence = study.binding(claim)
    return mean_is_above(shift(evidence, "qk", "dR")[..., correct(evidence, "q")], claim.margin())(level=claim.level)


@row("binding.correct_only.keys_lead",
     "On the prompts that the model answers correctly a shift of keys turns attention more than the query's does,"
     " either way.",
     kind="ordering", metrics=("dR",), statistic="dR of both kinds of keys less that of the query, and plus it, mean"
     " over correct examples, above the margin", reads=("q", "k_both"), **CORRECT)  # fmt: skip
def test_keys_lead_on_correct_examples(claim: Claim, study: Study) -> Verdict:
    """Of a mean's absolute value the estimate is biased, so both signs are judged."""
    evidence = study.binding(claim)
    query, keys = (shift(evidence, condition, "dR")[..., correct(evidence, "q")] for condition in ("q", "k_both"))
    parts = {
        "keys over the query": mean_is_above(keys - query, claim.margin()),
        "keys over the query's opposite": mean_is_above(keys + query, claim.margin()),
    }
    return all_of(claim.kind, parts, level=claim.level)


@rows(
    Claim(f"binding.correct_only.{condition}.{name}",
          f"On correctly answered prompts, with {intervention}, {name} is the printed number.",
          SOURCE, "value", (name,), f"mean {name} over correct examples", CORRECT["where"], group="B", needs=("B",),
          condition=condition, printed=f"correct_only.{condition}.{name}", models=(LLAMA_3B,),
          reads=(condition,))
    for condition, intervention in CONDITIONS.items()
    for name in METRICS)  # fmt: skip
def test_the_printed_numbers_of_correct_examples(claim: Claim, study: Study) -> Verdict:
    """The paper does not print the number of examples behind a number; ours is assumed."""
    paper = printed_number(claim, study)
    if paper is None:
        return not_applicable(claim.kind, "the paper prints no such number for this model")
    evidence = study.binding(claim)
    is_correct = correct(evidence, "q")
    values = shift(evidence, str(claim.condition), claim.metrics[0])[..., is_correct]
    return compare_with_unknown_n(values, paper)(level=claim.level)


def compare_with_unknown_n(values: Array, paper: PublishedNumber) -> Part:
    """Compare with a printed number whose count of examples is not printed."""
    return partial(value, values, paper, unit=unit_of(values), paper_n=values.shape[-1])
