"""Edge attribution patching: every edge by one gradient, to compare exact edge patching with.

An edge goes from a head's output at a token to what one component (q, k, v) of a later head reads there, or to the
logits. What it does to the score if the sender speaks as in the noise prompt is approximated to first order:

    (write(noise z) - write(clean z)) . d score / d input of the receiver's component

with the receiver's norm inside the derivative. Nothing of the search is used but its recorded prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from rebinding.experiments.search.pairs import RecordedPairs

Link: TypeAlias = tuple[tuple[int, int, str], tuple[int, int] | None, str]
"""Sender with its kind of token, receiver (None: the logits), and component."""
COMPONENTS = ("q", "k", "v")


def classify_place(place: str) -> str:
    """A token's name without the number of its statement."""
    return re.sub(r"\[\d+\]", "", place)


def separate_keys(model: Any) -> Any:
    """The same Llama with a key and a value head for each query head, so that a head's key is its own."""
    config = type(model.config)(**{**model.config.to_dict(), "num_key_value_heads": model.config.num_attention_heads})
    config._attn_implementation = "eager"
    single, state = LlamaForCausalLM(config), dict(model.state_dict())
    group = model.config.num_attention_heads // model.config.num_key_value_heads
    for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
        heads = state[name].unflatten(0, (-1, model.config.head_dim))
        state[name] = heads.repeat_interleave(group, 0).flatten(0, 1)
    single.load_state_dict(state)
    return single.eval().requires_grad_(False)


def slopes(model: Any, recorded_pairs: RecordedPairs) -> tuple[list[list[Tensor]], list[Tensor], Tensor]:
    """d score / d every component (prompt, token, head x dim), layer by layer; every layer's input, and d score / d the
    last residual stream (prompt, token, hidden)."""
    values: dict[tuple[int, str], Tensor] = {}
    handles = []
    for number, layer in enumerate(model.model.layers):
        handles.append(
            layer.register_forward_pre_hook(lambda _, args, n=number: values.update({(n, "input"): args[0]}))
        )
        for part in COMPONENTS:
            module = layer.self_attn.get_submodule(f"{part}_proj")
            handles.append(
                module.register_forward_hook(lambda _, args, out, at=(number, part): values.update({at: out}))
            )
    handles.append(model.model.norm.register_forward_pre_hook(lambda _, args: values.update({(-1, "input"): args[0]})))
    tokens, answers = recorded_pairs.recording.tokens, recorded_pairs.pairs.answers
    try:
        logits = model(inputs_embeds=model.get_input_embeddings()(tokens).requires_grad_(), use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    words = logits[torch.arange(len(tokens)), recorded_pairs.pairs.at("readout")].gather(1, answers)  # (prompt, object)
    score = (words[:, 0] - words[:, 1:].mean(1)).sum()
    parts = [[values[number, part] for part in COMPONENTS] for number in range(len(model.model.layers))]
    grads = torch.autograd.grad(score, [*(tensor for line in parts for tensor in line), values[-1, "input"]])
    lines = [list(grads[3 * n : 3 * n + 3]) for n in range(len(parts))]
    return lines, [values[n, "input"].detach() for n in range(len(parts))], grads[-1]


def attributed(model: Any, recorded_pairs: RecordedPairs) -> Mapping[Link, float]:
    """Every edge with its size: the mean over prompts, at the statement where it is largest."""
    grads, inputs, last = slopes(model, recorded_pairs)
    width = model.config.head_dim
    sizes: dict[Link, float] = {}
    head_changes: list[Tensor] = []  # what each head's noise adds to the stream, a layer: (prompt, head, token, hidden)
    for number, layer in enumerate(model.model.layers):
        for part, grad in zip(COMPONENTS, grads[number], strict=True):
            weight = layer.self_attn.get_submodule(f"{part}_proj").weight.unflatten(
                0, (-1, width)
            )  # (head, dim, hidden)
            arrives = torch.einsum(
                "pthd,hdx->hptx", grad.unflatten(-1, (-1, width)), weight
            )  # (head, prompt, token, x)
            for head, slope in enumerate(_before_norm(layer.input_layernorm, inputs[number], arrives)):
                sizes.update(_links(recorded_pairs, head_changes, slope, (number, head), part))
        change = (
            recorded_pairs.noise_z[number] - recorded_pairs.recording.sites["z"][number]
        )  # (prompt, head, token, dim)
        output = layer.self_attn.o_proj.weight.unflatten(1, (-1, width))  # (hidden, head, dim)
        head_changes.append(torch.einsum("phtd,xhd->phtx", change, output))
    sizes.update(_links(recorded_pairs, head_changes, last, None, "direct"))
    return sizes


def _before_norm(norm: Any, value: Tensor, arrives: Tensor) -> Iterator[Tensor]:
    """Slopes before a norm, from those after it, head by head."""
    with torch.enable_grad():
        leaf = value.clone().requires_grad_()
        after = norm(leaf)
    for arrival in arrives:
        yield torch.autograd.grad(after, leaf, arrival, retain_graph=True)[0]


def _links(
    recorded_pairs: RecordedPairs,
    head_changes: list[Tensor],
    slope: Tensor,
    receiver: tuple[int, int] | None,
    part: str,
) -> Iterator[tuple[Link, float]]:
    """All edges into one place, from every head below it."""
    for layer, change in enumerate(head_changes):
        effect = torch.einsum("phtx,ptx->ht", change, slope).abs() / recorded_pairs.n  # (head, token)
        for head, line in enumerate(effect.tolist()):
            largest: dict[str, float] = {}
            for place, size in zip(recorded_pairs.pairs.places, line, strict=True):
                largest[classify_place(place)] = max(size, largest.get(classify_place(place), 0.0))
            yield from (((((layer, head, kind)), receiver, part), size) for kind, size in largest.items())
