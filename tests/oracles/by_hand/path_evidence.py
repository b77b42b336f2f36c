"""Path patching by hand: one sender and one prompt at a time, two full forwards each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.experiments.prompts import Stories
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Recomputation, numbered, relative_difference, sized
from tests.oracles.by_hand.plain_model import Plain, Put


def recompute_paths(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The answer with a sender's z as in the noise prompt: in the run itself, or as receivers hear it."""
    encoded = prompts.encode(request.prompts)
    for index, row in numbered(rows):
        place = request.prompts.ids.index(int(row["prompt"]))
        clean, noise = encoded.prompts[place], encoded.counterfactuals[place]
        layer, head, sender = int(row["layer"]), int(row["head"]), request.stage.sender
        span = plain.span(head)
        new = plain.clean(noise.ids).values["z", layer][0, noise.roles[sender], span]
        old = plain.clean(clean.ids).values["z", layer][0, clean.roles[sender], span]
        send = [*_frozen(plain, request, clean), Put("z", layer, clean.roles[sender], new, head)]
        after, before = _received_z(plain, request, clean, send), plain.answer(clean.ids)
        values = {
            **_score(prompts, clean, before, "orig"),
            **_score(prompts, clean, after, "patch"),
            "relative_change": relative_difference(new, old),
        }
        # what listeners hear is a query or a key that is scored, and so is what is heard of them
        scores = plain.scores(clean.ids, range(len(plain.layers))) if request.stage.component else 1.0
        yield Recomputation(index, values, sized(before, after, minimum=scores))


def _frozen(plain: Plain, request: Any, clean: Encoded) -> list[Put]:
    """All z as in the clean run, if that is the convention."""
    if request.settings.frozen == "none":
        return []
    clean_values = plain.clean(clean.ids).values
    return [Put("z", layer, slice(None), clean_values["z", layer][0]) for layer in range(len(plain.layers))]


def _received_z(plain: Plain, request: Any, clean: Encoded, send: Sequence[Put]) -> Tensor:
    """Logits (vocabulary,) when only receivers hear what was sent, in the parts of them that the stage names."""
    stage = request.stage
    if stage.component is None:
        return plain.run([(clean.ids, send)]).logits[0]
    at = clean.roles[stage.at]
    parts = [(part, layer) for layer in {layer for layer, _ in request.receivers} for part in stage.component]
    received = plain.run([(clean.ids, send)], parts).values
    puts = [
        Put(part, layer, at, received[part, layer][0, at, plain.span(head)], head)
        for part, layer in parts
        for head in _hearing(plain, request, part, layer)
    ]
    return plain.run([(clean.ids, puts)]).logits[0]


def _hearing(plain: Plain, request: Any, part: str, layer: int) -> list[int]:
    """The receivers of a layer, and those that share a key or value with one, if these are edited in common."""
    receivers = [head for at, head in request.receivers if at == layer]
    shared = part != "q" and request.settings.scope == "group"
    return sorted({sharing_head for head in receivers for sharing_head in (plain.shares(head) if shared else [head])})


def _score(prompts: Stories, clean: Encoded, logits: Tensor, run: str) -> dict[str, float]:
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
