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
        self, tokens: Tensor, at: int, sets: Mapping[Place, Tensor], reads: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]: ...


def group_by_layer(sets: Mapping[Place, Tensor]) -> dict[tuple[str, int], list[Place]]:
    """The places that are set, by site and layer."""
    places_by_layer: dict[tuple[str, int], list[Place]] = {}
    for place in sets:
        places_by_layer.setdefault((place.site, place.layer), []).append(place)
    return places_by_layer


def write_values(value: Tensor, at: int, sets: Mapping[Place, Tensor], places: list[Place]) -> Tensor:
    """A module's tensor (row, token, heads x dim) with the values of some heads in it; NaN keeps what is there."""
    value = value.clone()
    for place in places:
        width = sets[place].shape[-1]
        part = value[:, at, place.head * width : (place.head + 1) * width]  # (row, dim), a view
        part.copy_(torch.where(sets[place].isnan(), part, sets[place]))
    return value


def pyvene_forward(model: Any) -> Forward:
    """pyvene: an intervention is a function, attached to a module by its path."""
    width = model.config.head_dim
    names = {"z": "model.layers.{}.self_attn.o_proj.input", "q": "model.layers.{}.self_attn.q_proj.output"}

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], reads: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        values: dict[int, Tensor] = {}

        def setting(places: list[Place]) -> Callable[..., Tensor]:
            return lambda base, source=None: write_values(base, at, sets, places)

        def make_reader(layer: int) -> Callable[..., Tensor]:
            def get(base: Tensor, source: Any = None) -> Tensor:
                values[layer] = base[:, at].unflatten(-1, (-1, width)).clone()
                return base

            return get

        edits = [(names[site].format(layer), setting(places)) for (site, layer), places in group_by_layer(sets).items()]
        edits += [(names["q"].format(layer), make_reader(layer)) for layer in reads]
        interventions = [{"component": name, "intervention": function} for name, function in edits]
        output = pyvene.IntervenableModel(interventions, model)({"input_ids": tokens, "logits_to_keep": 1})[1]
        return output.logits[:, -1], values

    return forward


def transformer_lens_forward(model: Any) -> Forward:
    """TransformerLens 4: a bridge around the model, hooks by name."""
    model_copy = copy.deepcopy(model)  # a bridge changes the model that it is built around
    model_copy.config.architectures = ["LlamaForCausalLM"]
    with TemporaryDirectory() as folder:  # a tokenizer is asked for, and opened again by its name; no text is tokenised
        build_tokenizer().save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(
            "a random Llama", hf_model=model_copy, tokenizer=tokenizer, device="cpu", dtype=torch.float32
        )
    names = {"z": "blocks.{}.attn.hook_z", "q": "blocks.{}.attn.hook_q"}

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], reads: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        values: dict[int, Tensor] = {}

        def setting(places: list[Place]) -> Callable[..., Tensor]:
            def put(value: Tensor, hook: Any) -> Tensor:
                return write_values(value.flatten(2), at, sets, places).reshape(value.shape)

            return put

        def make_reader(layer: int) -> Callable[..., Tensor]:
            def get(value: Tensor, hook: Any) -> Tensor:
                values[layer] = value[:, at].reshape(len(value), -1, model.config.head_dim).clone()
                return value

            return get

        hooks = [(names[site].format(layer), setting(places)) for (site, layer), places in group_by_layer(sets).items()]
        hooks += [(names["q"].format(layer), make_reader(layer)) for layer in reads]
        logits = bridge.run_with_hooks(tokens, return_type="logits", fwd_hooks=hooks)
        return logits[:, at], values

    return forward


def nnsight_forward(model: Any) -> Forward:
    """nnsight: one trace, in the order of execution."""
    traced = NNsight(model)
    width = model.config.head_dim

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], reads: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        places, values = group_by_layer(sets), {}
        with traced.trace(input_ids=tokens, use_cache=False, logits_to_keep=1):
            for number in range(model.config.num_hidden_layers):
                attention = traced.model.layers[number].self_attn
                if ("q", number) in places:
                    attention.q_proj.output = write_values(attention.q_proj.output, at, sets, places["q", number])
                if number in reads:
                    values[number] = attention.q_proj.output[:, at].unflatten(-1, (-1, width)).clone().save()
                if ("z", number) in places:
                    attention.o_proj.input = write_values(attention.o_proj.input, at, sets, places["z", number])
            logits = traced.output.logits[:, -1].save()
        return logits, values

    return forward


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    """Hooks that are taken away again."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hooks_forward(model: Any) -> Forward:
    """No library: torch's own hooks."""
    width = model.config.head_dim

    def forward(
        tokens: Tensor, at: int, sets: Mapping[Place, Tensor], reads: tuple[int, ...] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        values: dict[int, Tensor] = {}

        def setting(site: str, layer: int, places: list[Place]) -> Any:
            attention = model.model.layers[layer].self_attn
            if site == "z":
                return attention.o_proj.register_forward_pre_hook(
                    lambda _, args: (write_values(args[0], at, sets, places),)
                )
            return attention.q_proj.register_forward_hook(lambda _, args, out: write_values(out, at, sets, places))

        def make_reader(layer: int) -> Any:
            def get(_: Any, args: Any, out: Tensor) -> None:
                values[layer] = out[:, at].unflatten(-1, (-1, width)).clone()

            return model.model.layers[layer].self_attn.q_proj.register_forward_hook(get)

        handles = [setting(site, layer, places) for (site, layer), places in group_by_layer(sets).items()]
        with hooked([*handles, *map(make_reader, reads)]):
            return model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1], values

    return forward


PEERS: Mapping[str, Callable[[Any], Forward]] = {
    "torch's hooks": hooks_forward,
    "TransformerLens": transformer_lens_forward,
    "pyvene": pyvene_forward,
    "nnsight": nnsight_forward,
}
