"""The facts about a model that its costs depend on, without its weights: shape, length of prompts, circuit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rebinding.models.devices import Dtype
from rebinding.models.loaded_model import form_for
from rebinding.models.shapes import shape_config
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.study.model_spec import parse_model
from rebinding.task.chat import Form
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

TOKENS = {"gemma": 83, "llama3": 106}
"""Tokens of a published prompt in the chat forms of the paper's models, by their own tokenizers."""
STAND_IN = "llama3.2-3b"
"""The model whose circuit is used where a model's own is not known."""


@dataclass(frozen=True)
class ModelFacts:
    """A model's shape, prompt length and circuit; `circuit_of` names the circuit's model where it is another one."""

    name: str
    config: PreTrainedConfig
    dtype: Dtype
    tokens: int
    form: Form
    heads: Circuit
    circuit_of: str | None = None


def model_facts(name: str, tokens: int | None = None) -> ModelFacts:
    """The facts about a model, from its name. The paper's shapes come with the package; for another model on the Hub
    the description is fetched, and no weights."""
    spec = parse_model(name)
    if spec.plant is not None:
        raise ValueError(f"{name}: a planted model is judged in minutes on any machine; there is nothing to cost")
    alias = spec.origin.alias
    if alias is not None and spec.origin.kind in ("hub", "shape"):
        length = tokens or TOKENS[alias.form]
        return ModelFacts(alias.name, shape_config(alias.name), alias.dtype, length, alias.form, published(alias.name))
    from rebinding.models.checkpoint import read_description  # transformers takes a while to import

    config, tokenizer = read_description(spec.origin)
    form = form_for(spec.name, spec.origin, tokenizer)
    length = tokens or _count_tokens(tokenizer, form)
    if alias is not None and spec.shape_fits:
        return ModelFacts(name, config, spec.dtype, length, form, published(alias.name))
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None) or [""] * text.num_hidden_layers
    layers = [number for number, kind in enumerate(kinds) if kind != "linear_attention"]  # those with heads
    heads = stretched(published(STAND_IN), layers, text.num_attention_heads)
    return ModelFacts(name, config, spec.dtype, length, form, heads, STAND_IN)


def published(alias: str) -> Circuit:
    """The circuit that the paper prints for a model."""
    return Circuit(circuit(alias))


def stretched(heads: Circuit, layers: Sequence[int], width: int) -> Circuit:
    """The heads of a circuit at the same relative depths of another model's `layers`. At most half of a layer's heads,
    so that random circuits can use as many others; the first heads of every group have priority."""
    depth = checkpoint(STAND_IN).layers
    by_rank = sorted((rank, node) for group in heads.groups.values() for rank, node in enumerate(group))
    by_layer: dict[int, dict[int, CircuitHead]] = {}
    for _, node in by_rank:
        layer, head = layers[node.layer * len(layers) // depth], node.head % width
        used = by_layer.setdefault(layer, {})
        if head not in used and len(used) < max(1, width // 2):
            used[head] = CircuitHead(node.group, layer, head, node.role)
    return Circuit(tuple(sorted(node for used in by_layer.values() for node in used.values())))


def _count_tokens(tokenizer: PreTrainedTokenizerFast, form: Form) -> int:
    """The length of a published prompt in the model's own tokens and chat form."""
    encoder = Encoder(tokenizer, form)
    return len(encoder.encode([design("published", tokenizer=tokenizer).prompt(0)])[0])
