"""What each experiment puts into a run, and what comes of it: one plain version of each, on token ids and hooks.

The packs' experiments (`tests.reference.naive`), rows of evidence (`tests.oracles.by_hand`) and steps of the search
(`tests/experiments/search`) are all made with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from tests.reference.naive.plain_model import Head, Plain, Put, Site, Tokens


def head_value(plain: Plain, site: Site, ids: Tokens, head: Head, at: int) -> Tensor:
    """A head's own part of a site of the unedited run (head_dim,)."""
    return plain.clean(ids).values[site, head[0]][0, at, plain.span(head[1])]


def residuals(plain: Plain, source: Tokens, places: Iterable[tuple[int, int]]) -> list[Put]:
    """Tracing: the inputs of decoder layers in another prompt's run, at (layer, token)."""
    values = plain.clean(source).values
    return [Put("resid", layer, at, values["resid", layer][0, at]) for layer, at in places]


def sender_puts(plain: Plain, clean: Tokens, sender: Head, at: int, output: Tensor, *, frozen: bool) -> list[Put]:
    """Path patching, first run: a sender's output is another one; frozen: that of all other heads the clean run's, at
    every token."""
    values, layers = plain.clean(clean).values, range(len(plain.layers)) if frozen else ()
    fixed = [Put("z", layer, slice(None), values["z", layer][0]) for layer in layers]
    return [*fixed, Put("z", sender[0], at, output, sender[1])]


def receiver_logits(
    plain: Plain, clean: Tokens, sends: Sequence[Sequence[Put]], components: Sequence[Site],
    receivers: Collection[Head], at: int | None, *, shared: bool,
) -> Tensor:  # fmt: skip
    """Path patching, second run: logits (send, vocabulary) where only receivers hear what was sent, in these components
    of theirs at one token; without components everything does. Of a shared key or value all heads see the new one."""
    if not components:
        return plain.run([(clean, send) for send in sends]).logits
    assert at is not None
    sites = [(component, layer) for component in components for layer in sorted({layer for layer, _ in receivers})]
    values = plain.run([(clean, send) for send in sends], sites).values
    hearing = [
        (component, layer, head)
        for component, layer in sites
        for head in sorted(
            {
                member
                for at_layer, receiver in receivers
                for member in (plain.shares(receiver) if shared and component != "q" else [receiver])
                if at_layer == layer
            }
        )
    ]
    puts = [
        [Put(site, layer, at, values[site, layer][line, at, plain.span(head)], head) for site, layer, head in hearing]
        for line in range(len(sends))
    ]
    return plain.run([(clean, put) for put in puts]).logits


def logits_of_changed_receivers(
    plain: Plain, clean: Tokens, send: Sequence[Put], component: Site, receivers: Iterable[tuple[Head, int]], at: int
) -> Tensor:
    """A step of the search, second run: logits (vocabulary,) where each receiver's z changes by what the receiver makes
    of one input, as it was after the send: its own query, or a key or a value at the sender's token."""
    puts = []
    for (layer, head), own in receivers:
        token, span = own if component == "q" else at, plain.span(head)
        received = plain.run([(clean, send)], [(component, layer)]).values[component, layer][0, token, span]
        z_after = plain.run([(clean, [Put(component, layer, token, received, head)])], [("z", layer)]).values[
            "z", layer
        ]
        change = z_after[0, own, span] - head_value(plain, "z", clean, (layer, head), own)
        puts.append(Put("z", layer, own, change, head, add=True))
    return plain.run([(clean, puts)]).logits[0]


def mean_outputs(plain: Plain, texts: Iterable[Tokens]) -> list[Tensor]:
    """Mean z over prompts of one length, by layer (token, head x head_dim)."""
    recorded = [plain.clean(ids).values for ids in texts]
    layers = range(len(plain.layers))
    return [torch.stack([values["z", at][0].double() for values in recorded]).mean(0).float() for at in layers]


def ablated(means: Sequence[Tensor], alive: Collection[tuple[int, int, int]]) -> list[Put]:
    """Every head at every token at its mean, but for these at their tokens: (layer, token, head)."""
    return [
        Put("z", layer, slice(None), mean, spare=tuple((at, head) for at_layer, at, head in alive if at_layer == layer))
        for layer, mean in enumerate(means)
    ]


def answer_scores(logits: Tensor, answer: Collection[int], rivals: Collection[int]) -> dict[str, float]:
    """Of logits (vocabulary,): the best of an answer's tokens, its lead over the best rival, all its probability."""
    label = max(float(logits[token]) for token in answer)
    margin = label - max(float(logits[token]) for token in rivals)
    probability = sum(float(torch.softmax(logits.double(), 0)[token]) for token in set(answer))
    return {"label_logit": label, "margin": margin, "probability": probability}


def interchanged(
    plain: Plain, source: Tokens, heads: Iterable[Head], source_at: int, at: int, *, outputs: bool
) -> list[Put]:
    """Head roles: outputs of heads in another prompt's run, or their rows of attention, which then weigh the values of
    the run that they are put into."""
    if outputs:
        return [Put("z", head[0], at, head_value(plain, "z", source, head, source_at), head[1]) for head in heads]
    rows = plain.clean(source).attention
    return [Put("pattern", layer, at, rows[layer][0, head, source_at], head) for layer, head in heads]


def mean_vectors(plain: Plain, site: Site, heads: Sequence[Head], places: Iterable[tuple[Tokens, int]]) -> Tensor:
    """Section 5: means over (prompt, token) of what heads have at a site (head, head_dim)."""
    values = [torch.stack([head_value(plain, site, ids, head, at) for head in heads]) for ids, at in places]
    return torch.stack(values).double().mean(0).float()


def noise_of(heads: Sequence[Head], real: Tensor, seed: int) -> Tensor:
    """A standard normal vector a head, drawn in (layer, head) order, with the norm of the real one (head, head_dim)."""
    dice = torch.Generator().manual_seed(seed)
    noise = {head: torch.randn(real.shape[-1], generator=dice) for head in sorted(heads)}
    scaled: Tensor = torch.stack([noise[head] / noise[head].norm() for head in heads]) * real.norm(dim=-1, keepdim=True)
    return scaled


def by_shared_key(plain: Plain, heads: Sequence[Head]) -> dict[Head, list[int]]:
    """Which of the listed heads have one key, by layer and group."""
    places: dict[Head, list[int]] = {}
    for place, (layer, head) in enumerate(heads):
        places.setdefault((layer, head // plain.group), []).append(place)
    return places


def shared_edit(plain: Plain, heads: Sequence[Head], vectors: Tensor) -> dict[Head, Tensor]:
    """The edit of a key that heads share: the mean over the listed ones, seen by all."""
    return {
        (layer, member): vectors[places].mean(0)
        for (layer, _), places in by_shared_key(plain, heads).items()
        for member in plain.shares(heads[places[0]][1])
    }
