"""Full forwards with plain torch hooks, one prompt at a time: what a step of the search is compared with.

It shares nothing with the package. KV heads are taken apart beforehand by repeating the weights
(`tests.experiments.circuit.setup.with_repeated_keys`), so that "one query head's key" is an ordinary projection output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.experiments.search.graph import Node
from rebinding.task.prompts import Encoded

Hook = tuple[nn.Module, str, Callable[..., Any]]


@contextmanager
def hooked(hooks: Sequence[Hook]) -> Iterator[None]:
    """Hooks on inputs ("in") or outputs ("out") of modules."""
    handles = [
        module.register_forward_pre_hook(act) if side == "in" else module.register_forward_hook(act)
        for module, side, act in hooks
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Naive:
    """A model on its own eager attention, with hooks at hand."""

    def __init__(self, model: PreTrainedModel, layers: nn.ModuleList, n_heads: int, head_dim: int) -> None:
        self.model, self.layers, self.n_heads, self.dim = model, layers, n_heads, head_dim

    @torch.no_grad()
    def probability(self, encoded: Encoded, label: int, hooks: Sequence[Hook] = ()) -> float:
        """The answer's probability at the readout."""
        with hooked(hooks):
            logits = self.model(torch.tensor([encoded.ids]), use_cache=False).logits[0, encoded.roles["readout"]]
        return float(torch.softmax(logits.float(), -1)[label])

    @torch.no_grad()
    def look(
        self, encoded: Encoded, modules: dict[str, tuple[nn.Module, str]], hooks: Sequence[Hook] = ()
    ) -> dict[str, Tensor]:
        """The inputs or outputs of some modules."""
        values: dict[str, Tensor] = {}

        def keep(name: str, side: str) -> Callable[..., None]:
            def act(module: nn.Module, args: Any, out: Any = None) -> None:
                values[name] = (args[0] if side == "in" else out).clone()

            return act

        with hooked([*hooks, *((module, side, keep(name, side)) for name, (module, side) in modules.items())]):
            self.model(torch.tensor([encoded.ids]), use_cache=False)
        return values

    def all_z(self, encoded: Encoded) -> dict[str, Tensor]:
        """The inputs of all output projections."""
        return self.look(
            encoded, {str(n): (layer.get_submodule("self_attn.o_proj"), "in") for n, layer in enumerate(self.layers)}
        )

    def hold(self, clean: dict[str, Tensor], sender: tuple[int, int, int], value: Tensor, frozen: bool) -> list[Hook]:
        """Replace the sender's z (layer, head, position); hold every other z if frozen."""
        layer, head, position = sender
        span = slice(head * self.dim, (head + 1) * self.dim)

        def act(number: int) -> Callable[..., tuple[Tensor]]:
            def replace(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
                z = clean[str(number)].clone() if frozen else args[0].clone()
                if number == layer:
                    z[0, position, span] = value[span]
                return (z,)

            return replace

        numbers = range(len(self.layers)) if frozen else [layer]
        return [(self.layers[number].get_submodule("self_attn.o_proj"), "in", act(number)) for number in numbers]


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
