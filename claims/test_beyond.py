"""Beyond the paper: questions that a reviewer would ask about its circuit."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.catalogue import row
from claims.conventions import SHARES, circuit_exceeds_random
from claims.shifts import mean_exceeds, mean_is_above
from rebinding.evidence import Evidence
from rebinding.experiments.binding.request import request_exchange
from rebinding.experiments.binding.summary import shift
from rebinding.experiments.circuit.request import request_knockout
from rebinding.experiments.circuit.summary import gate_other_heads, of_circuit, of_random
from rebinding.experiments.paths.summary import discover_static_circuit, reselected, selected_on_halves
from rebinding.experiments.search.request import request_crossings
from rebinding.experiments.search.summary import led_by_expected
from rebinding.experiments.static import (
    request_bystander_questions,
    request_other_questions_of_refill,
    request_refilled_questions,
    request_stories_without_swap,
)
from rebinding.experiments.tracing.request import request_stored_state
from rebinding.experiments.tracing.summary import becomes_other_object, gate_swap_moves
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import (
    Verdict,
    above_chance,
    absence,
    effect,
    guarded,
    no_effect,
    ordering,
    overlap,
    reported,
)
from rebinding.verdicts.quantities import with_quantities
from rebinding.verdicts.sentences import Part, all_of, any_of

SECTION = "robust"
CHANCE = 1 / 3
SEVEN = 7
BALANCED = 288
"""Ids of eight whole blocks of counterbalanced stories."""
LATER = "swap to all that is later"
CROSSING_OF_GROUP = {"E": "context to swap", "D": "swap to question", "C": "question to readout"}
"""The part of a story that each group crosses, as the evidence calls it."""
SHARED = "ABC"
"""The groups that static tracking has too: at the readout, and at the question's box."""
STORIES: dict[str, dict[str, Any]] = {
    "seven boxes": {"boxes": SEVEN},
    "narrative": {"name": "counterbalanced", "narrative": True},
}
ROW: dict[str, Any] = {"source": "beyond the paper", "models": (), "procedure": "controlled"}
STORED = ROW | {"metrics": ("accuracy",)}
CROSSED = ROW | {"kind": "effect", "metrics": ("dlogit",), "n": 96, "long": True}
OTHER_STORIES = ROW | {
    "source": "beyond the paper, its own future work",
    "kind": "ordering",
    "metrics": ("accuracy",),
    "statistic": "hits of the circuit less those of random circuits, draws crossed with prompts",
    "unit": "nested",
    "group": "A",
}
ABLATION = (
    "the circuit's heads, all others at their mean over counterbalanced prompts; random circuits matched by layer"
)


@row("beyond.interchange",
     "Real queries of group B, or real keys, turn its attention where the mean direction of their slots does not.",
     kind="effect", metrics=("dR",), group="B", unit="nested", n=180,
     statistic="mean dR, above 0 and above that of the mean direction on the same cases: of the query of the same story"
     " with a question about the box whose object stands in slot j, or of the keys of slots i and j exchanged",
     where="each head of group B with attention on the slots, at the readout; raw projections; read on box and object;"
     " all ordered slot pairs", **ROW)  # fmt: skip
def test_real_queries_or_keys_do_what_means_do_not(claim: Claim, study: Study) -> Verdict:
    means, margin, conventions = study.binding(claim), claim.margin(), study.procedure(claim).binding
    real = study.ask(claim, partial(request_exchange, conventions=conventions))
    parts: dict[str, Part] = {}
    for condition, name in (("q", "queries"), ("k_both", "keys")):
        by_mean, by_exchange = shift(means, condition, "dR"), shift(real, condition, "dR")
        conditions = {
            "turn": mean_is_above(by_exchange, margin),
            "turn more than means": mean_exceeds(by_exchange, by_mean, margin),
        }
        parts[name] = partial(all_of, claim.kind, conditions)
    return any_of(claim.kind, parts)


@row("beyond.state_not_stored",
     "No token between the swap and the asked label holds the updated objects: taken from a prompt with other objects,"
     " these tokens do not bring the other prompt's answer.",
     kind="no-effect", n=BALANCED, headline=5,
     statistic="share of prompts whose answer becomes the object of the other prompt, at most a tenth",
     where="the stream at all tokens from the swap to the last before the asked label, at every layer at once, from a"
     " prompt with the same swap and other objects in all boxes; counterbalanced slots, held-out words",
     **STORED)  # fmt: skip
def test_no_token_holds_the_state(claim: Claim, study: Study) -> Verdict:
    evidence = ask_stored_state(claim, study)
    becomes_other = becomes_other_object(evidence, "state")
    gates = [gate_swap_moves(evidence)]
    verdict = guarded(claim.kind, gates, lambda: no_effect(becomes_other, margin=claim.margin(), level=claim.level))
    return with_quantities(verdict, "iia", {"answers of the other prompt": becomes_other})


@row("beyond.resolved_at_readout",
     "Whether the object is fetched at the readout, or by the question's last tokens.",
     kind="report", n=BALANCED,
     statistic="share of prompts whose answer becomes the object of the other prompt: at-readout below a tenth,"
     " at-question above",
     where="the stream at all tokens from the asked label to the last before the readout, at every layer at once, from"
     " a prompt with the same swap and other objects in all boxes; counterbalanced slots, held-out words",
     **STORED)  # fmt: skip
def test_where_the_object_is_fetched(claim: Claim, study: Study) -> Verdict:
    becomes_other = becomes_other_object(ask_stored_state(claim, study), "question")
    verdict = no_effect(becomes_other, margin=claim.margin(), level=claim.level)
    finding = {"REPLICATED": "at-readout", "NOT REPLICATED": "at-question"}.get(verdict.outcome, "open")
    return reported(
        finding, f"{finding}: {verdict.reason}",
        measured=verdict.measured, low=verdict.low, high=verdict.high, n=verdict.n, against=0.0,
    )  # fmt: skip


def ask_stored_state(claim: Claim, study: Study) -> Evidence:
    """The answers with the tokens of a span from a prompt with other objects, or from one with another swap."""
    return study.ask(claim, partial(request_stored_state, conventions=study.procedure(claim).tracing))


@row("beyond.necessary",
     "Without the circuit's heads the model answers fewer prompts than without as many others of the same layers: no"
     " other heads do what they do.",
     kind="ordering", metrics=("accuracy",), group="A", unit="nested",
     statistic="hits without random sets of other heads less hits without the circuit's, draws crossed with prompts",
     where="the circuit's heads at their tokens, held at their mean over counterbalanced prompts; all other heads as"
     " they are", **ROW)  # fmt: skip
def test_the_model_needs_the_circuit(claim: Claim, study: Study) -> Verdict:
    enough_heads = gate_other_heads(study.circuit, study.heads)
    return guarded(claim.kind, [enough_heads], lambda: circuit_costs_more_than_random_heads(claim, study))


def circuit_costs_more_than_random_heads(claim: Claim, study: Study) -> Verdict:
    """The model loses more hits without the circuit's heads than without random other heads."""
    evidence = study.ask(claim, request_knockout)
    hits = of_circuit(evidence, "circuit", "hit").astype(float)
    return ordering(of_random(evidence, "hit"), hits, unit=claim.unit, support=SHARES, margin=claim.margin())


@row("beyond.route_through_swap_labels",
     "What the swap says leaves it by its labels, and not by another of its tokens.",
     statistic="what the answer's lead over the other objects loses without the messages that leave from the swap's"
     " labels, less what it loses without those from its other tokens, in logits: above 0 if the labels have more than"
     " half",
     where="the heads at tokens that position-free discovery finds: those in the swap as senders, later ones as"
     " receivers; path patching on prompts that discovery did not see, about a box that is swapped",
     **CROSSED)  # fmt: skip
def test_the_swap_is_left_by_its_labels(claim: Claim, study: Study) -> Verdict:
    return effect(led_by_expected(study.ask(claim, request_crossings), LATER), margin=claim.margin())


@row("beyond.groups_at_their_places",
     "What carries from the context to the swap, from the swap to the question and from the question to the readout"
     " stands where the paper puts groups E, D and C: at a label.",
     statistic="of each crossing the same difference, labels less all other tokens of the sentence; all three above 0",
     where="the heads at tokens that position-free discovery finds, from part to part; path patching on prompts that"
     " discovery did not see, about a box that is swapped", **CROSSED)  # fmt: skip
def test_what_carries_on_stands_at_labels(claim: Claim, study: Study) -> Verdict:
    evidence = study.ask(claim, request_crossings)
    parts: dict[str, Part] = {
        f"{group}, {name}": partial(effect, led_by_expected(evidence, name), margin=claim.margin())
        for group, name in CROSSING_OF_GROUP.items()
    }
    return all_of(claim.kind, parts)


@row("beyond.static_and_bystander",
     "The circuit's heads also answer without a swap, and about the box that the swap does not name; static tracking is"
     " done by them.",
     kind="ordering", metrics=("margin", "accuracy"), group="A", unit="nested",
     statistic="the answer's margin over the other objects less that in random circuits, draws crossed with prompts;"
     " the share of prompts answered, above chance; overlap of groups A to C with those that path patching finds"
     " without a swap",
     where="the circuit's heads whose tokens are there, all others at their mean over counterbalanced prompts; random"
     " circuits matched by layer", **ROW)  # fmt: skip
def test_the_circuit_serves_what_was_not_swapped(claim: Claim, study: Study) -> Verdict:
    stories = {
        "without a swap": study.ask(claim, request_stories_without_swap),
        "about a bystander": study.ask(claim, request_bystander_questions),
    }
    parts: dict[str, Part] = {"heads of static tracking": partial(shared_with_static, claim, study)}
    for name, evidence in stories.items():
        margins = of_circuit(evidence, "circuit", "margin"), of_random(evidence, "margin")
        hits = of_circuit(evidence, "circuit", "hit")
        parts[f"{name}, margin"] = partial(ordering, *margins, unit=claim.unit, margin=claim.margin("margin"))
        parts[f"{name}, answers"] = partial(effect, hits, above=CHANCE, margin=claim.margin("accuracy"))
    gates = [above_chance(of_circuit(evidence, "full", "hit"), CHANCE) for evidence in stories.values()]
    return guarded(claim.kind, gates, lambda: all_of(claim.kind, parts))


def shared_with_static(claim: Claim, study: Study, *, level: float) -> Verdict:
    """Overlap of groups A to C with the heads that discovery finds where nothing is swapped."""
    conventions = study.conventions(claim)
    static = discover_static_circuit(partial(study.ask, claim), conventions)
    static_heads, heads = heads_of_shared_groups(static.circuit), heads_of_shared_groups(study.circuit)
    selections: list[Any] = [
        (evidence, conventions.score, conventions.select, static.circuit.group("B") if group == "A" else ())
        for group, evidence in static.evidence.items()
        if group in SHARED
    ]
    if not static_heads:
        resampled = zip(*(reselected(*selection) for selection in selections), strict=True)
        return absence([set().union(*groups) for groups in resampled], level=level)
    halves = zip(*(selected_on_halves(*selection) for selection in selections), strict=True)
    repetitions = [tuple(set().union(*half) for half in zip(*groups, strict=True)) for groups in halves]
    options: Any = {"universe": len(study.heads), "layers": study.layers, "repetitions": repetitions}
    return overlap(static_heads, heads, null="layers", level=level, **options)


def heads_of_shared_groups(circuit: Circuit) -> set[Head]:
    """The heads of groups A to C of a circuit."""
    return {head for group in SHARED for head in circuit.group(group)}


@row("beyond.put_remove",
     "The circuit found on swaps also answers where a box is emptied and something new is put there, about this box and"
     " about others.", where=f"{ABLATION}; heads whose tokens are not there are held", **OTHER_STORIES)  # fmt: skip
def test_the_circuit_serves_what_is_put_and_removed(claim: Claim, study: Study) -> Verdict:
    requests = {
        "the box that is refilled": request_refilled_questions,
        "another box": request_other_questions_of_refill,
    }
    questions = {name: study.ask(claim, make_request) for name, make_request in requests.items()}
    gates = [above_chance(of_circuit(evidence, "full", "hit"), CHANCE) for evidence in questions.values()]
    parts = {name: circuit_exceeds_random(claim, evidence) for name, evidence in questions.items()}
    return guarded(claim.kind, gates, lambda: all_of(claim.kind, parts))


@row("beyond.many_boxes", "The circuit found on three boxes also answers with seven.",
     condition="seven boxes", where=f"{ABLATION}; the published questions, with four more boxes behind",
     **OTHER_STORIES)  # fmt: skip
@row("beyond.narrative",
     "The circuit also answers where sentences that have nothing to do with boxes stand around the statements.",
     condition="narrative", where=f"{ABLATION}; counterbalanced prompts", **OTHER_STORIES)  # fmt: skip
def test_the_circuit_serves_other_stories(claim: Claim, study: Study) -> Verdict:
    story = STORIES[claim.condition or ""]
    gate = study.check_ability_at(study.n(claim), **story)
    return guarded(
        claim.kind,
        [gate],
        lambda: circuit_exceeds_random(claim, study.ablate_on_other_prompts(claim, **story))(level=claim.level),
    )
