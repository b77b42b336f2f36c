"""What costs depend on, found without a model's weights: its shape, the length of its prompts, a circuit."""

from __future__ import annotations

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
"""Whose circuit is rehearsed where a model's own is not known."""


@dataclass(frozen=True)
class Known:
    """A model's shape; `whose` circuit its heads are, where they are not its own."""

    name: str
    config: PreTrainedConfig
    dtype: Dtype
    tokens: int
    form: Form
    heads: Circuit
    whose: str | None = None


def known(name: str, tokens: int | None = None) -> Known:
    """What is known of a model by its name. Of one on the Hub its description is fetched, and no weights; the paper's
    shapes come with the package."""
    asked = parse_model(name)
    if asked.plant is not None:
        raise ValueError(f"{name}: a planted model is judged in minutes on any machine; there is nothing to cost")
    alias = asked.origin.alias
    if alias is not None and asked.origin.kind in ("hub", "shape"):
        long = tokens or TOKENS[alias.form]
        return Known(alias.name, shape_config(alias.name), alias.dtype, long, alias.form, published(alias.name))
    from rebinding.models.checkpoint import read_description  # transformers takes a while to import

    config, tokenizer = read_description(asked.origin)
    form = form_for(asked.name, asked.origin, tokenizer)
    long = tokens or _tokens(tokenizer, form)
    if alias is not None and asked.shape_fits:
        return Known(name, config, asked.dtype, long, form, published(alias.name))
    text = config.get_text_config(decoder=True)
    layers, width = text.num_hidden_layers, text.num_attention_heads
    return Known(name, config, asked.dtype, long, form, stretched(published(STAND_IN), layers, width), STAND_IN)


def published(alias: str) -> Circuit:
    """The circuit that the paper prints for a model."""
    return Circuit(circuit(alias))


def stretched(heads: Circuit, layers: int, width: int) -> Circuit:
    """The heads of a circuit at the same depths of another model. Of a layer at most half, so that as many others are
    left for random circuits; every group's first heads come first."""
    whole = checkpoint(STAND_IN).layers
    in_turn = sorted((place, one) for group in heads.groups.values() for place, one in enumerate(group))
    there: dict[int, dict[int, CircuitHead]] = {}
    for _, one in in_turn:
        layer, head = one.layer * layers // whole, one.head % width
        some = there.setdefault(layer, {})
        if head not in some and len(some) < max(1, width // 2):
            some[head] = CircuitHead(one.group, layer, head, one.role)
    return Circuit(tuple(sorted(one for some in there.values() for one in some.values())))


def _tokens(tokenizer: PreTrainedTokenizerFast, form: Form) -> int:
    """The length of a published prompt in the model's own tokens and chat form."""
    encoder = Encoder(tokenizer, form)
    return len(encoder.encode([design("published", tokenizer=tokenizer).prompt(0)])[0])
