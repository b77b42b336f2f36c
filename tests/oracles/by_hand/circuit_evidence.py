"""Section 4.1 by hand: heads fixed at means of z, and path patching, one full forward after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import pandas as pd
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
from tests.oracles.by_hand.compare import (
    Recomputation,
    Recompute,
    find_prompt,
    numbered,
    relative_difference,
    sized,
    sure,
    torn,
)
from tests.reference.naive.edits import ablated, answer_scores, head_value, mean_outputs, receiver_logits, sender_puts
from tests.reference.naive.plain_model import Plain, Put, Site

Heads: TypeAlias = Collection[CircuitHead]
Means: TypeAlias = list[Tensor]


def recompute_ability(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The model as it is."""
    for index, row in numbered(rows):
        logits = plain.answer(find_prompt(prompts, request, row).ids)
        size = sized(logits)
        yield Recomputation(index, _score(prompts, find_prompt(prompts, request, row), logits, size), size)


def recompute_ablation(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A circuit with all other heads at their means, or the model as it is."""
    for index, row in numbered(rows):
        prompt = find_prompt(prompts, request, row)
        logits = plain.answer(prompt.ids)
        if row["variant"] != "full":
            alive = _variant(plain, request, row, match=request.match, exclude=False)
            logits = ablated_logits(plain, prompt, alive, recompute_means(plain, prompts, request.means))
        size = sized(logits) if row["variant"] == "full" else _torn(plain, prompt, logits)
        yield Recomputation(index, _score(prompts, prompt, logits, size, request.answers), size)


def recompute_knockout(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A circuit's heads at their means, and all others as they then are."""
    for index, row in numbered(rows):
        prompt, change = find_prompt(prompts, request, row), 0.0
        logits = plain.answer(prompt.ids)
        if row["variant"] != "full":
            removed = _variant(plain, request, row, match="role_and_layer", exclude=True)
            if row["variant"] == "less":  # a head of a group alone
                removed = [head for head in request.circuit if head not in removed]
            means, clean_values, puts = (
                recompute_means(plain, prompts, request.means),
                plain.clean(prompt.ids).values,
                [],
            )
            for at, head in ((_at(prompt, head), head) for head in removed):
                mean = means[head.layer][at, plain.span(head.head)]
                change = max(
                    change, relative_difference(mean, clean_values["z", head.layer][0, at, plain.span(head.head)])
                )
                puts.append(Put("z", head.layer, at, mean, head.head))
            logits = plain.run([(prompt.ids, puts)]).logits[0]
        size = sized(logits) if row["variant"] == "full" else _torn(plain, prompt, logits)
        yield Recomputation(index, _score(prompts, prompt, logits, size) | {"relative_change": change}, size)


def recompute_contributions(
    plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame
) -> Iterator[Recomputation]:
    """Hits with a head and without it, beside a set of others that are gone."""
    removed = removed_sets(Circuit(request.circuit), request.random_sets)  # which heads are drawn is no measurement
    means = recompute_means(plain, prompts, request.means)
    for index, row in numbered(rows):
        prompt, head = find_prompt(prompts, request, row), _head(row)
        with_it = [member for member in request.circuit if member == head or member not in removed[row["removed_set"]]]
        runs = [
            ablated_logits(plain, prompt, with_it, means),
            ablated_logits(plain, prompt, _without_head(with_it, head), means),
        ]
        size = _torn(plain, prompt, *runs)
        hits = [_score(prompts, prompt, logits, size, request.answers)["hit"] for logits in runs]
        yield Recomputation(index, dict(zip(("before", "without"), hits, strict=True)), size)


def recompute_pruning(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A trial on a walk: what was left until then, with the head and without it, mean over the walk's own prompts."""
    walks = dict(iter(rows.attrs["all"].groupby("order", sort=False)))
    means, all_prompts = recompute_means(plain, prompts, request.means), prompts.encode(request.prompts).prompts
    n = len(all_prompts) // len(walks)
    for index, row in numbered(rows):
        walk, encoded = walks[row["order"]], all_prompts[row["order"] * n :][:n]
        tested = [_head(step) for _, step in walk.iterrows()]
        assert sorted(tested) == sorted(request.circuit), "a walk tries every head once"
        assert row["order"] > 0 or tuple(tested) == request.circuit, "the first walk is in the circuit's own order"
        removed = [_head(step) for _, step in walk.loc[: index - 1].iterrows() if step["removed"]]
        remaining = [head for head in tested if head not in removed]
        sets = [
            [ablated_logits(plain, prompt, heads, means) for prompt in encoded]
            for heads in (remaining, _without_head(remaining, _head(row)))
        ]
        sets.append([plain.answer(prompt.ids) for prompt in encoded])
        before, without_head, full = (_mean(prompts, request, encoded, runs) for runs in sets)
        drop = before - without_head
        size = max(_torn(plain, prompt, *runs) for prompt, *runs in zip(encoded, *sets, strict=True))
        values = {"before": before, "drop": drop, "full_model": full, "removed": sure(request.step - drop, size)}
        yield Recomputation(index, values, size)


def ablated_logits(plain: Plain, prompt: Encoded, alive: Heads, means: Means) -> Tensor:
    """Logits (vocabulary,) with every head at every token at its mean, but for these at their tokens."""
    return plain.run([(prompt.ids, _fix_other_heads(prompt, alive, means))]).logits[0]


def recompute_stream(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The circuit alone, and the same with the residual stream at one token as it is in the noise prompt's circuit."""
    means, two = recompute_means(plain, prompts, request.means), prompts.encode(request.prompts)
    look: list[tuple[Site, int]] = [("resid", layer) for layer in request.layers]
    for index, row in numbered(rows):
        number = request.prompts.ids.index(int(row["prompt"]))
        prompt, noise = two.prompts[number], two.counterfactuals[number]
        streams = []
        for side in (prompt, noise):
            values = plain.run([(side.ids, _fix_other_heads(side, request.circuit, means))], look).values
            streams.append([values[site][0, side.roles[request.role]] for site in look])
        clean_stream, noise_stream = streams
        at = prompt.roles[request.role]
        puts = [Put(site, layer, at, new) for (site, layer), new in zip(look, noise_stream, strict=True)]
        before = ablated_logits(plain, prompt, request.circuit, means)
        after = plain.run([(prompt.ids, [*_fix_other_heads(prompt, request.circuit, means), *puts])]).logits[0]
        size = _torn(plain, prompt, before, after)
        margins = [_score(prompts, prompt, logits, size, request.answers)["margin"] for logits in (before, after)]
        change = max(relative_difference(new, old) for new, old in zip(noise_stream, clean_stream, strict=True))
        yield Recomputation(
            index, dict(zip(("before", "after"), margins, strict=True)) | {"relative_change": change}, size
        )


def _torn(plain: Plain, prompt: Encoded, *logits: Tensor) -> float:
    """The size of logits with heads at their means: those of all layers but the first may then be torn."""
    return torn(sized(*logits), plain.scores(prompt.ids, range(1, len(plain.layers))))


def _fix_other_heads(prompt: Encoded, alive: Heads, means: Means) -> list[Put]:
    return ablated(means, [(head.layer, _at(prompt, head), head.head) for head in alive])


@cache
def recompute_means(plain: Plain, prompts: Stories, request: Any) -> Means:
    """Mean z over prompts, by layer (token, head x head_dim)."""
    return mean_outputs(plain, [prompt.ids for prompt in prompts.encode(request.prompts).prompts])


def _variant(plain: Plain, request: Any, row: Any, **options: Any) -> Heads:
    """The heads of a row's circuit. Which ones are drawn at random is no measurement, and is not computed again."""
    circuit: tuple[CircuitHead, ...] = request.circuit
    if row["variant"] == "circuit":
        return circuit
    if row["variant"] == "less":
        is_full = row["layer"] < 0
        return [x for x in circuit if x.group != row["group"] or not (is_full or x[1:3] == (row["layer"], row["head"]))]
    free = [head for head in plain.all_heads if head not in getattr(request, "spared", ())]
    random_circuits = draw_circuits(Circuit(circuit), free, draws=request.draws, **options)
    return random_circuits[int(row["draw"])].heads


def _head(row: Any) -> CircuitHead:
    return CircuitHead(str(row["group"]), int(row["layer"]), int(row["head"]), str(row["role"]))


def _without_head(heads: Heads, head: CircuitHead) -> list[CircuitHead]:
    return [member for member in heads if member != head]


def _at(prompt: Encoded, head: CircuitHead) -> int:
    at = token_at(head.role, prompt.roles)
    assert at is not None
    return at


def _score(
    prompts: Stories, prompt: Encoded, logits: Tensor, size: float, rule: AnswerSet = "continuation"
) -> dict[str, float | bool | None]:
    """The answer's logit, its margin over the best other object, whether it beats them all, its probability."""
    answer = prompt.prompt.answer
    objects = [word for word in prompt.prompt.story.state().values() if word not in (None, answer)]
    answer_tokens = _tokens(prompts, answer, rule)
    rivals = {token for word in objects for token in _tokens(prompts, str(word), rule)}
    scores = answer_scores(logits, answer_tokens, rivals)
    return {**scores, "hit": sure(scores["margin"], size)}


def _tokens(prompts: Stories, word: str, rule: AnswerSet) -> set[int]:
    """What stands for a word: its continuation, or any first token of it, with a space and without."""
    return set(prompts.encoder.alias_tokens(word)) if rule == "exp2_aliases" else {prompts.encoder.answer_token(word)}


def _mean(prompts: Stories, request: Any, encoded: Sequence[Encoded], logits: Sequence[Tensor]) -> float:
    prompts_and_logits = zip(encoded, logits, strict=True)
    values = [
        _score(prompts, prompt, prompt_logits, sized(prompt_logits), request.answers)[request.by]
        for prompt, prompt_logits in prompts_and_logits
    ]
    return sum(float(value) for value in values if value is not None) / len(values)


def recompute_paths(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The answer with a sender's z as in the noise prompt: in the run itself, or as receivers hear it."""
    encoded = prompts.encode(request.prompts)
    for index, row in numbered(rows):
        place = request.prompts.ids.index(int(row["prompt"]))
        clean, noise = encoded.prompts[place], encoded.counterfactuals[place]
        layer, head, sender = int(row["layer"]), int(row["head"]), request.stage.sender
        new, old = (head_value(plain, "z", side.ids, (layer, head), side.roles[sender]) for side in (noise, clean))
        send = sender_puts(
            plain, clean.ids, (layer, head), clean.roles[sender], new, frozen=request.settings.frozen != "none"
        )
        stage, shared = request.stage, request.settings.scope == "group"
        at = clean.roles[stage.at] if stage.component else None
        (after,) = receiver_logits(
            plain, clean.ids, [send], stage.component or (), request.receivers, at, shared=shared
        )
        before = plain.answer(clean.ids)
        values = {
            **_lead(prompts, clean, before, "orig"),
            **_lead(prompts, clean, after, "patch"),
            "relative_change": relative_difference(new, old),
        }
        # what listeners hear is a query or a key that is scored, and so is what is heard of them
        scores = plain.scores(clean.ids, range(len(plain.layers))) if request.stage.component else 1.0
        yield Recomputation(index, values, sized(before, after, minimum=scores))


def _lead(prompts: Stories, clean: Encoded, logits: Tensor, run: str) -> dict[str, float]:
    """The answer's logit, its probability, and its lead over the mean of the other objects."""
    prompt = clean.prompt
    other_words = [word for word in prompt.story.state().values() if word not in (None, prompt.answer)]
    answer, rivals = (
        prompts.encoder.answer_token(prompt.answer),
        [prompts.encoder.answer_token(str(w)) for w in other_words],
    )
    answer_logit = float(logits[answer])
    probability = float(torch.softmax(logits.double(), 0)[answer])
    return {
        f"logit_{run}": answer_logit,
        f"p_{run}": probability,
        f"lead_{run}": answer_logit - float(logits[rivals].mean()),
    }


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
