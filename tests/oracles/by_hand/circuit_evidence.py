"""Section 4.1 by hand: heads fixed at means of z, and path patching, one full forward after another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.ablation import Ablation
from rebinding.experiments.circuit.request import Contributions, GroupKnockout, Knockout, Pruning, Stream, removed_sets
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import Stories
from rebinding.experiments.random_draws import draw_circuits
from rebinding.experiments.static import UnswappedQuestions
from rebinding.experiments.unedited import Ability
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.task.prompts import AnswerSet, Encoded
from rebinding.task.text import token_at
from tests.oracles.by_hand.compare import EvidenceRow, Recompute, Values, relative_difference, sized, sure, torn
from tests.reference.naive.edits import ablated, answer_scores, head_value, mean_outputs, receiver_logits, sender_puts
from tests.reference.naive.plain_model import Plain, Put, Site

Heads: TypeAlias = Collection[CircuitHead]
Means: TypeAlias = list[Tensor]


def recompute_ability(row: EvidenceRow) -> tuple[Values, float]:
    """The model as it is."""
    logits = row.plain.answer(row.prompt.ids)
    size = sized(logits)
    return _score(row, row.prompt, logits, size), size


def recompute_ablation(row: EvidenceRow) -> tuple[Values, float]:
    """A circuit with all other heads at their means, or the model as it is."""
    prompt, request = row.prompt, row.request
    if row["variant"] == "full":
        logits = row.plain.answer(prompt.ids)
        size = sized(logits)
    else:
        logits = _ablated_logits(row, prompt, _variant(row, match=request.match, exclude=False))
        size = _torn(row, prompt, logits)
    return _score(row, prompt, logits, size, request.answers), size


def recompute_knockout(row: EvidenceRow) -> tuple[Values, float]:
    """A circuit's heads at their means, and all others as they then are."""
    plain, prompt, change = row.plain, row.prompt, 0.0
    logits = plain.answer(prompt.ids)
    if row["variant"] == "full":
        return _score(row, prompt, logits, sized(logits)) | {"relative_change": change}, sized(logits)
    removed = _variant(row, match="role_and_layer", exclude=True)
    if row["variant"] == "less":  # a head of a group alone
        removed = [head for head in row.request.circuit if head not in removed]
    means, puts = recompute_means(plain, row.prompts, row.request.means), []
    for at, head in ((_at(prompt, head), head) for head in removed):
        mean = means[head.layer][at, plain.span(head.head)]
        own = head_value(plain, "z", prompt.ids, (head.layer, head.head), at)
        change = max(change, relative_difference(mean, own))
        puts.append(Put("z", head.layer, at, mean, head.head))
    logits = plain.run([(prompt.ids, puts)]).logits[0]
    size = _torn(row, prompt, logits)
    return _score(row, prompt, logits, size) | {"relative_change": change}, size


def recompute_contributions(row: EvidenceRow) -> tuple[Values, float]:
    """Hits with a head and without it, beside a set of others that are gone."""
    request, prompt, head = row.request, row.prompt, _head(row)
    removed = removed_sets(Circuit(request.circuit), request.random_sets)  # which heads are drawn is no measurement
    with_it = [member for member in request.circuit if member == head or member not in removed[row["removed_set"]]]
    runs = [_ablated_logits(row, prompt, heads) for heads in (with_it, _without_head(with_it, head))]
    size = _torn(row, prompt, *runs)
    before, without = (_score(row, prompt, logits, size, request.answers)["hit"] for logits in runs)
    return {"before": before, "without": without}, size


def recompute_pruning(row: EvidenceRow) -> tuple[Values, float]:
    """A trial on a walk: what was left until then, with the head and without it, mean over the walk's own prompts."""
    request, order, all_prompts = row.request, int(row["order"]), row.prompts.encode(row.request.prompts).prompts
    walk = [EvidenceRow(*row.source, index) for index in row.evidence.index[row.evidence["order"] == order]]
    n = len(all_prompts) // row.evidence["order"].nunique()
    encoded, tested = all_prompts[order * n :][:n], [_head(step) for step in walk]
    assert sorted(tested) == sorted(request.circuit), "a walk tries every head once"
    assert order > 0 or tuple(tested) == request.circuit, "the first walk is in the circuit's own order"
    removed = [_head(step) for step in walk if step.index < row.index and step["removed"]]
    remaining = [head for head in tested if head not in removed]
    sets = [
        [_ablated_logits(row, prompt, heads) for prompt in encoded]
        for heads in (remaining, _without_head(remaining, _head(row)))
    ]
    sets.append([row.plain.answer(prompt.ids) for prompt in encoded])
    before, without_head, full = (_mean(row, encoded, runs) for runs in sets)
    drop = before - without_head
    size = max(_torn(row, prompt, *runs) for prompt, *runs in zip(encoded, *sets, strict=True))
    return {"before": before, "drop": drop, "full_model": full, "removed": sure(request.step - drop, size)}, size


def recompute_stream(row: EvidenceRow) -> tuple[Values, float]:
    """The circuit alone, and the same with the residual stream at one token as it is in the noise prompt's circuit."""
    plain, request, prompt = row.plain, row.request, row.prompt
    look: list[tuple[Site, int]] = [("resid", layer) for layer in request.layers]
    streams = []
    for side in (prompt, row.counterfactual):
        values = plain.run([(side.ids, _fix_other_heads(row, side, request.circuit))], look).values
        streams.append([values[site][0, side.roles[request.role]] for site in look])
    at, (clean_stream, noise_stream) = prompt.roles[request.role], streams
    puts = [Put(site, layer, at, new) for (site, layer), new in zip(look, noise_stream, strict=True)]
    before = _ablated_logits(row, prompt, request.circuit)
    after = plain.run([(prompt.ids, [*_fix_other_heads(row, prompt, request.circuit), *puts])]).logits[0]
    size = _torn(row, prompt, before, after)
    margins = [_score(row, prompt, logits, size, request.answers)["margin"] for logits in (before, after)]
    change = max(relative_difference(new, old) for new, old in zip(noise_stream, clean_stream, strict=True))
    return {"before": margins[0], "after": margins[1], "relative_change": change}, size


def _ablated_logits(row: EvidenceRow, prompt: Encoded, alive: Heads) -> Tensor:
    """Logits (vocabulary,) with every head at every token at its mean, but for these at their tokens."""
    return row.plain.run([(prompt.ids, _fix_other_heads(row, prompt, alive))]).logits[0]


def _torn(row: EvidenceRow, prompt: Encoded, *logits: Tensor) -> float:
    """The size of logits with heads at their means: those of all layers but the first may then be torn."""
    return torn(sized(*logits), row.plain.scores(prompt.ids, range(1, len(row.plain.layers))))


def _fix_other_heads(row: EvidenceRow, prompt: Encoded, alive: Heads) -> list[Put]:
    means = recompute_means(row.plain, row.prompts, row.request.means)
    return ablated(means, [(head.layer, _at(prompt, head), head.head) for head in alive])


@cache
def recompute_means(plain: Plain, prompts: Stories, request: Any) -> Means:
    """Mean z over prompts, by layer (token, head x head_dim)."""
    return mean_outputs(plain, [prompt.ids for prompt in prompts.encode(request.prompts).prompts])


def _variant(row: EvidenceRow, **options: Any) -> Heads:
    """The heads of a row's circuit. Which ones are drawn at random is no measurement, and is not computed again."""
    circuit: tuple[CircuitHead, ...] = row.request.circuit
    if row["variant"] == "circuit":
        return circuit
    if row["variant"] == "less":
        is_full = row["layer"] < 0
        return [x for x in circuit if x.group != row["group"] or not (is_full or x[1:3] == row.head)]
    free = [head for head in row.plain.all_heads if head not in getattr(row.request, "spared", ())]
    return draw_circuits(Circuit(circuit), free, draws=row.request.draws, **options)[int(row["draw"])].heads


def _head(row: EvidenceRow) -> CircuitHead:
    return CircuitHead(str(row["group"]), *row.head, str(row["role"]))


def _without_head(heads: Heads, head: CircuitHead) -> list[CircuitHead]:
    return [member for member in heads if member != head]


def _at(prompt: Encoded, head: CircuitHead) -> int:
    at = token_at(head.role, prompt.roles)
    assert at is not None
    return at


def _score(
    row: EvidenceRow, prompt: Encoded, logits: Tensor, size: float, rule: AnswerSet = "continuation"
) -> dict[str, float | bool | None]:
    """The answer's logit, its margin over the best other object, whether it beats them all, its probability."""
    answer, *others = (_tokens(row.prompts, word, rule) for word in _objects(prompt))
    scores = answer_scores(logits, answer, set().union(*others))
    return {**scores, "hit": sure(scores["margin"], size)}


def _objects(prompt: Encoded) -> list[str]:
    """The answer, and the other objects in the boxes at the end."""
    answer = prompt.prompt.answer
    return [answer, *(word for word in prompt.prompt.story.state().values() if word is not None and word != answer)]


def _tokens(prompts: Stories, word: str, rule: AnswerSet) -> set[int]:
    """What stands for a word: its continuation, or any first token of it, with a space and without."""
    return set(prompts.encoder.alias_tokens(word)) if rule == "exp2_aliases" else {prompts.encoder.answer_token(word)}


def _mean(row: EvidenceRow, encoded: Sequence[Encoded], logits: Sequence[Tensor]) -> float:
    values = [
        _score(row, prompt, prompt_logits, sized(prompt_logits), row.request.answers)[row.request.by]
        for prompt, prompt_logits in zip(encoded, logits, strict=True)
    ]
    return sum(float(value) for value in values if value is not None) / len(values)


def recompute_paths(row: EvidenceRow) -> tuple[Values, float]:
    """The answer with a sender's z as in the noise prompt: in the run itself, or as receivers hear it."""
    plain, clean, stage, settings = row.plain, row.prompt, row.request.stage, row.request.settings
    new, old = (
        head_value(plain, "z", side.ids, row.head, side.roles[stage.sender]) for side in (row.counterfactual, clean)
    )
    send = sender_puts(plain, clean.ids, row.head, clean.roles[stage.sender], new, frozen=settings.frozen != "none")
    at = clean.roles[stage.at] if stage.component else None
    receivers, shared = row.request.receivers, settings.scope == "group"
    (after,) = receiver_logits(plain, clean.ids, [send], stage.component or (), receivers, at, shared=shared)
    before = plain.answer(clean.ids)
    values = {**_lead(row.prompts, clean, before, "orig"), **_lead(row.prompts, clean, after, "patch")}
    # what listeners hear is a query or a key that is scored, and so is what is heard of them
    scores = plain.scores(clean.ids, range(len(plain.layers))) if stage.component else 1.0
    return values | {"relative_change": relative_difference(new, old)}, sized(before, after, minimum=scores)


def _lead(prompts: Stories, clean: Encoded, logits: Tensor, run: str) -> dict[str, float]:
    """The answer's logit, its probability, and its lead over the mean of the other objects."""
    answer, *rivals = map(prompts.encoder.answer_token, _objects(clean))
    logit, probability = float(logits[answer]), float(torch.softmax(logits.double(), 0)[answer])
    return {f"logit_{run}": logit, f"p_{run}": probability, f"lead_{run}": logit - float(logits[rivals].mean())}


BY_HAND: dict[type[Request], Recompute] = {
    Paths: recompute_paths,
    Ability: recompute_ability,
    Ablation: recompute_ablation,
    UnswappedQuestions: recompute_ablation,
    Knockout: recompute_knockout,
    GroupKnockout: recompute_knockout,
    Contributions: recompute_contributions,
    Pruning: recompute_pruning,
    Stream: recompute_stream,
}
