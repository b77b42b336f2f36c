"""One step of the search as one would first write it: one sender and one prompt at a time, full forwards, torch hooks.

KV heads are repeated beforehand (`with_repeated_keys` of `tests.experiments.circuit.test_paths`), so that a head's key
is a projection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rebinding.experiments.search.graph import Node
from rebinding.task.prompts import Encoded
from tests.experiments.circuit.naive import Hook, Naive, hooked


def score_after(
    naive: Naive,
    clean: Encoded,
    noise_z: Tensor,
    answers: Sequence[int],
    sender: Node,
    receivers: Sequence[Node],
    part: str,
) -> float:
    """The answer's logit less the others' mean, when receivers hear this sender's z as in the noise prompt."""
    all_z, at = naive.all_z(clean), clean.roles[sender.token]
    span = slice(sender.head * naive.dim, (sender.head + 1) * naive.dim)
    vector = all_z[str(sender.layer)][0, at].clone()
    vector[span] = noise_z
    send = naive.hold(all_z, (sender.layer, sender.head, at), vector, True)
    if part == "direct":
        return score(naive, clean, answers, send)
    write: list[Hook] = []
    for receiver in receivers:
        if receiver.layer > sender.layer:
            z = all_z[str(receiver.layer)][0, clean.roles[receiver.token]].view(naive.n_heads, naive.dim)
            clean_z = z[receiver.head]
            change = _received_z(naive, clean, at, receiver, send, part) - clean_z
            write.append(_add_to_z(naive, receiver, clean.roles[receiver.token], change))
    return score(naive, clean, answers, write)


def _received_z(naive: Naive, clean: Encoded, at: int, receiver: Node, send: Sequence[Hook], part: str) -> Tensor:
    """z of a receiver with the sender's output at the sender's token (for its query: at its own token)."""
    module = naive.layers[receiver.layer].get_submodule(f"self_attn.{part}_proj")
    received = naive.look(clean, {"it": (module, "out")}, send)["it"]
    token = clean.roles[receiver.token] if part == "q" else at
    span = slice(receiver.head * naive.dim, (receiver.head + 1) * naive.dim)

    def read(_: nn.Module, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[0, token, span] = received[0, token, span]
        return out

    output = naive.layers[receiver.layer].get_submodule("self_attn.o_proj")
    values = naive.look(clean, {"it": (output, "in")}, [(module, "out", read)])["it"]
    return values[0, clean.roles[receiver.token], span]


def _add_to_z(naive: Naive, receiver: Node, at: int, change: Tensor) -> Hook:
    span = slice(receiver.head * naive.dim, (receiver.head + 1) * naive.dim)

    def add(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        z = args[0].clone()
        z[0, at, span] += change
        return (z,)

    act: Callable[..., Any] = add
    return naive.layers[receiver.layer].get_submodule("self_attn.o_proj"), "in", act


@torch.no_grad()
def score(naive: Naive, clean: Encoded, answers: Sequence[int], hooks: Sequence[Hook] = ()) -> float:
    with hooked(hooks):
        logits = naive.model(torch.tensor([clean.ids]), use_cache=False).logits[0, clean.roles["readout"]]
    return float(logits[answers[0]] - logits[list(answers[1:])].mean())
