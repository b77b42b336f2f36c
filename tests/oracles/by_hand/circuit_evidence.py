"""Section 4.1 by hand: heads held at means of z, one full forward after another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.circuit.contributions import removed_sets
from rebinding.experiments.circuit.random_circuits import draw_circuits
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.task.answers import AnswerSet
from rebinding.task.prompts import Encoded
from rebinding.task.text import token_at
from tests.oracles.by_hand.compare import Again, moved, numbered, prompt_of, sized, sure, torn
from tests.oracles.by_hand.plain_model import Plain, Put, Site

Heads: TypeAlias = Collection[CircuitHead]
Means: TypeAlias = list[Tensor]


def of_ability(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The model as it is."""
    for index, row in numbered(rows):
        logits = plain.answer(prompt_of(prompts, request, row).ids)
        size = sized(logits)
        yield Again(index, _told(prompts, prompt_of(prompts, request, row), logits, size), size)


def of_ablation(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A circuit with all other heads at their means, or the model as it is."""
    for index, row in numbered(rows):
        prompt = prompt_of(prompts, request, row)
        logits = plain.answer(prompt.ids)
        if row["which"] != "full":
            alive = _variant(plain, request, row, match=request.match, exclude=False)
            logits = ablated(plain, prompt, alive, means_of(plain, prompts, request.means))
        size = sized(logits) if row["which"] == "full" else _torn(plain, prompt, logits)
        yield Again(index, _told(prompts, prompt, logits, size, request.answers), size)


def of_knockout(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A circuit's heads at their means, and all others as they then are."""
    for index, row in numbered(rows):
        prompt, far = prompt_of(prompts, request, row), 0.0
        logits = plain.answer(prompt.ids)
        if row["which"] != "full":
            gone = _variant(plain, request, row, match="role_and_layer", exclude=True)
            means, own, puts = means_of(plain, prompts, request.means), plain.clean(prompt.ids).values, []
            for at, one in ((_at(prompt, one), one) for one in gone):
                mean = means[one.layer][at, plain.span(one.head)]
                far = max(far, moved(mean, own["z", one.layer][0, at, plain.span(one.head)]))
                puts.append(Put("z", one.layer, at, mean, one.head))
            logits = plain.run([(prompt.ids, puts)]).logits[0]
        size = sized(logits) if row["which"] == "full" else _torn(plain, prompt, logits)
        yield Again(index, _told(prompts, prompt, logits, size) | {"moved": far}, size)


def of_contributions(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """Hits with a head and without it, beside a set of others that are gone."""
    gone = removed_sets(Circuit(request.circuit), request.random_sets)  # which heads are drawn is no measurement
    means = means_of(plain, prompts, request.means)
    for index, row in numbered(rows):
        prompt, head = prompt_of(prompts, request, row), _head(row)
        with_it = [one for one in request.circuit if one == head or one not in gone[row["gone"]]]
        runs = [ablated(plain, prompt, with_it, means), ablated(plain, prompt, _less(with_it, head), means)]
        size = _torn(plain, prompt, *runs)
        hits = [_told(prompts, prompt, logits, size, request.answers)["hit"] for logits in runs]
        yield Again(index, dict(zip(("before", "without"), hits, strict=True)), size)


def of_pruning(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A trial on a walk: what was left until then, with the head and without it, mean over prompts."""
    walks = dict(iter(rows.attrs["all"].groupby("order", sort=False)))
    means, encoded = means_of(plain, prompts, request.means), prompts.encode(request.prompts).prompts
    for index, row in numbered(rows):
        walk = walks[row["order"]]
        tried = [_head(one) for _, one in walk.iterrows()]
        assert sorted(tried) == sorted(request.circuit), "a walk tries every head once"
        assert row["order"] > 0 or tuple(tried) == request.circuit, "the first walk is in the circuit's own order"
        removed = [_head(one) for _, one in walk.loc[: index - 1].iterrows() if one["removed"]]
        left = [one for one in tried if one not in removed]
        sets = [[ablated(plain, one, some, means) for one in encoded] for some in (left, _less(left, _head(row)))]
        sets.append([plain.answer(one.ids) for one in encoded])
        before, without, whole = (_mean(prompts, request, encoded, some) for some in sets)
        drop = before - without
        size = max(_torn(plain, one, *runs) for one, *runs in zip(encoded, *sets, strict=True))
        told = {"before": before, "drop": drop, "whole": whole, "removed": sure(request.step - drop, size)}
        yield Again(index, told, size)


def ablated(plain: Plain, prompt: Encoded, alive: Heads, means: Means) -> Tensor:
    """Logits (vocabulary,) with every head at every token at its mean, but for these at their tokens."""
    return plain.run([(prompt.ids, _held(prompt, alive, means))]).logits[0]


def of_stream(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The circuit alone, and the same with the residual stream at one token as it is in the noise prompt's circuit."""
    means, two = means_of(plain, prompts, request.means), prompts.encode(request.prompts)
    look: list[tuple[Site, int]] = [("resid", layer) for layer in request.layers]
    for index, row in numbered(rows):
        number = request.prompts.ids.index(int(row["prompt"]))
        prompt, noise = two.prompts[number], two.counterfactuals[number]
        streams = []
        for one in (prompt, noise):
            seen = plain.run([(one.ids, _held(one, request.circuit, means))], look).values
            streams.append([seen[site][0, one.roles[request.role]] for site in look])
        own, other = streams
        at = prompt.roles[request.role]
        puts = [Put(site, layer, at, new) for (site, layer), new in zip(look, other, strict=True)]
        before = ablated(plain, prompt, request.circuit, means)
        after = plain.run([(prompt.ids, [*_held(prompt, request.circuit, means), *puts])]).logits[0]
        size = _torn(plain, prompt, before, after)
        margins = [_told(prompts, prompt, logits, size, request.answers)["margin"] for logits in (before, after)]
        far = max(moved(new, old) for new, old in zip(other, own, strict=True))
        yield Again(index, dict(zip(("before", "after"), margins, strict=True)) | {"moved": far}, size)


def _torn(plain: Plain, prompt: Encoded, *logits: Tensor) -> float:
    """The size of logits with heads at their means: those of all layers but the first may then be torn."""
    return torn(sized(*logits), plain.scores(prompt.ids, range(1, len(plain.layers))))


def _held(prompt: Encoded, alive: Heads, means: Means) -> list[Put]:
    return [
        Put("z", layer, slice(None), mean, spare=tuple((_at(prompt, x), x.head) for x in alive if x.layer == layer))
        for layer, mean in enumerate(means)
    ]


@cache
def means_of(plain: Plain, prompts: Prompts, request: Any) -> Means:
    """Mean z over prompts, by layer (token, head x head_dim)."""
    seen = [plain.clean(one.ids).values for one in prompts.encode(request.prompts).prompts]
    every = range(len(plain.layers))
    return [torch.stack([one["z", at][0].double() for one in seen]).mean(0).float() for at in every]


def _variant(plain: Plain, request: Any, row: Any, **how: Any) -> Heads:
    """The heads of a row's circuit. Which ones are drawn at random is no measurement, and is not computed again."""
    circuit: tuple[CircuitHead, ...] = request.circuit
    if row["which"] == "circuit":
        return circuit
    if row["which"] == "less":
        whole = row["layer"] < 0
        return [x for x in circuit if x.group != row["group"] or not (whole or x[1:3] == (row["layer"], row["head"]))]
    drawn = draw_circuits(Circuit(circuit), len(plain.layers), plain.heads, draws=request.draws, **how)
    return drawn[int(row["draw"])].heads


def _head(row: Any) -> CircuitHead:
    return CircuitHead(str(row["group"]), int(row["layer"]), int(row["head"]), str(row["role"]))


def _less(heads: Heads, head: CircuitHead) -> list[CircuitHead]:
    return [one for one in heads if one != head]


def _at(prompt: Encoded, head: CircuitHead) -> int:
    at = token_at(head.role, prompt.roles)
    assert at is not None
    return at


def _told(
    prompts: Prompts, prompt: Encoded, logits: Tensor, size: float, rule: AnswerSet = "continuation"
) -> dict[str, float | bool | None]:
    """The answer's logit, its margin over the best other object, whether it beats them all, its probability."""
    answer = prompt.prompt.answer
    held = [word for word in prompt.prompt.story.state().values() if word not in (None, answer)]
    own, others = (
        _tokens(prompts, answer, rule),
        {token for word in held for token in _tokens(prompts, str(word), rule)},
    )
    label = max(float(logits[token]) for token in own)
    margin = label - max(float(logits[token]) for token in others)
    probability = sum(float(torch.softmax(logits.double(), 0)[token]) for token in own)
    return {"label_logit": label, "margin": margin, "hit": sure(margin, size), "probability": probability}


def _tokens(prompts: Prompts, word: str, rule: AnswerSet) -> set[int]:
    """What stands for a word: its continuation, or any first token of it, with a space and without."""
    return set(prompts.encoder.alias_tokens(word)) if rule == "exp2_aliases" else {prompts.encoder.answer_token(word)}


def _mean(prompts: Prompts, request: Any, encoded: Sequence[Encoded], logits: Sequence[Tensor]) -> float:
    both = zip(encoded, logits, strict=True)
    told = [_told(prompts, one, some, sized(some), request.answers)[request.by] for one, some in both]
    return sum(float(one) for one in told if one is not None) / len(told)
