"""One edited forward pass, as each library has it.

A forward replaces the outputs of some heads (`z`) or their queries (`q`) at one token, and tells queries and logits
there. What a library offers beyond this, such as batches of interventions, is used where it has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import pyvene
import torch
from nnsight import NNsight
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

from rebinding.planted.tokenizer import build_tokenizer


class Place(NamedTuple):
    """A head's output `z`, or its query `q` before it is rotated."""

    site: str
    layer: int
    head: int


class Forward(Protocol):
    """The logits (row, vocabulary), and some layers' queries (row, head, dim), at token `at`, with some heads set to
    values (row, dim)."""

    def __call__(
        self, tokens: Tensor, at: int, sets: Mapping[Place, Tensor], gets: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]: ...


def layers_of(sets: Mapping[Place, Tensor]) -> dict[tuple[str, int], list[Place]]:
    """The places that are set, by site and layer."""
    found: dict[tuple[str, int], list[Place]] = {}
    for place in sets:
        found.setdefault((place.site, place.layer), []).append(place)
    return found


def written(value: Tensor, at: int, sets: Mapping[Place, Tensor], places: list[Place]) -> Tensor:
    """A module's tensor (row, token, heads x dim) with the values of some heads in it; NaN keeps what is there."""
    value = value.clone()
    for place in places:
        width = sets[place].shape[-1]
        there = value[:, at, place.head * width : (place.head + 1) * width]  # (row, dim), a view
        there.copy_(torch.where(sets[place].isnan(), there, sets[place]))
    return value


def by_pyvene(model: Any) -> Forward:
    """pyvene: an intervention is a function, attached to a module by its path."""
    width = model.config.head_dim
    names = {"z": "model.layers.{}.self_attn.o_proj.input", "q": "model.layers.{}.self_attn.q_proj.output"}

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], gets: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {}

        def setting(places: list[Place]) -> Callable[..., Tensor]:
            return lambda base, source=None: written(base, at, sets, places)

        def getting(layer: int) -> Callable[..., Tensor]:
            def get(base: Tensor, source: Any = None) -> Tensor:
                seen[layer] = base[:, at].unflatten(-1, (-1, width)).clone()
                return base

            return get

        edits = [(names[site].format(layer), setting(places)) for (site, layer), places in layers_of(sets).items()]
        edits += [(names["q"].format(layer), getting(layer)) for layer in gets]
        told = [{"component": name, "intervention": function} for name, function in edits]
        found = pyvene.IntervenableModel(told, model)({"input_ids": tokens, "logits_to_keep": 1})[1]
        return found.logits[:, -1], seen

    return forward


def by_transformer_lens(model: Any) -> Forward:
    """TransformerLens 4: a bridge around the model, hooks by name."""
    own = copy.deepcopy(model)  # a bridge changes the model that it is built around
    own.config.architectures = ["LlamaForCausalLM"]
    with TemporaryDirectory() as folder:  # a tokenizer is asked for, and opened again by its name; no text is tokenised
        build_tokenizer().save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(
            "a random Llama", hf_model=own, tokenizer=tokenizer, device="cpu", dtype=torch.float32
        )
    names = {"z": "blocks.{}.attn.hook_z", "q": "blocks.{}.attn.hook_q"}

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], gets: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {}

        def setting(places: list[Place]) -> Callable[..., Tensor]:
            def put(value: Tensor, hook: Any) -> Tensor:
                return written(value.flatten(2), at, sets, places).reshape(value.shape)

            return put

        def getting(layer: int) -> Callable[..., Tensor]:
            def get(value: Tensor, hook: Any) -> Tensor:
                seen[layer] = value[:, at].reshape(len(value), -1, model.config.head_dim).clone()
                return value

            return get

        hooks = [(names[site].format(layer), setting(places)) for (site, layer), places in layers_of(sets).items()]
        hooks += [(names["q"].format(layer), getting(layer)) for layer in gets]
        logits = bridge.run_with_hooks(tokens, return_type="logits", fwd_hooks=hooks)
        return logits[:, at], seen

    return forward


def by_nnsight(model: Any) -> Forward:
    """nnsight: one trace, in the order of execution."""
    traced = NNsight(model)
    width = model.config.head_dim

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], gets: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        places, seen = layers_of(sets), {}
        with traced.trace(input_ids=tokens, use_cache=False, logits_to_keep=1):
            for number in range(model.config.num_hidden_layers):
                attention = traced.model.layers[number].self_attn
                if ("q", number) in places:
                    attention.q_proj.output = written(attention.q_proj.output, at, sets, places["q", number])
                if number in gets:
                    seen[number] = attention.q_proj.output[:, at].unflatten(-1, (-1, width)).clone().save()
                if ("z", number) in places:
                    attention.o_proj.input = written(attention.o_proj.input, at, sets, places["z", number])
            logits = traced.output.logits[:, -1].save()
        return logits, seen

    return forward


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    """Hooks that are taken away again."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_hooks(model: Any) -> Forward:
    """No library: torch's own hooks."""
    width = model.config.head_dim

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], gets: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {}

        def setting(site: str, layer: int, places: list[Place]) -> Any:
            attention = model.model.layers[layer].self_attn
            if site == "z":
                return attention.o_proj.register_forward_pre_hook(lambda _, args: (written(args[0], at, sets, places),))
            return attention.q_proj.register_forward_hook(lambda _, args, out: written(out, at, sets, places))

        def getting(layer: int) -> Any:
            def get(_: Any, args: Any, out: Tensor) -> None:
                seen[layer] = out[:, at].unflatten(-1, (-1, width)).clone()

            return model.model.layers[layer].self_attn.q_proj.register_forward_hook(get)

        handles = [setting(site, layer, places) for (site, layer), places in layers_of(sets).items()]
        with hooked([*handles, *map(getting, gets)]):
            return model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1], seen

    return forward


PEERS: Mapping[str, Callable[[Any], Forward]] = {
    "torch's hooks": by_hooks,
    "TransformerLens": by_transformer_lens,
    "pyvene": by_pyvene,
    "nnsight": by_nnsight,
}
