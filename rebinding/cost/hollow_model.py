"""A hollow model: the shape of a model without weights, on a fake device; and the facts that its costs depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from rebinding.cost.fake_device import FakeDevice, fake_accelerator, move_to_fake_device
from rebinding.experiments.prompts import Stories
from rebinding.models.devices import Dtype, torch_dtype
from rebinding.models.loaded_model import LoadedModel, form_for
from rebinding.models.names import Origin
from rebinding.models.selfcheck import derive_checked
from rebinding.models.shapes import shape_config, skeleton
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.study.model_spec import parse_model
from rebinding.surgery import TorchSurgeon
from rebinding.surgery.batch import Batch, Results
from rebinding.surgery.sites import Attention
from rebinding.task.chat import Form
from rebinding.task.designs import design
from rebinding.task.prompts import Encoded, Encoder, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

TOKENS = {"gemma": 83, "llama3": 106}
"""Tokens of a published prompt in the chat forms of the paper's models, by their own tokenizers."""
STAND_IN = "llama3.2-3b"
"""The model whose circuit is used where a model's own is not known."""


class PaddedEncoder(Encoder):
    """The embedded tokenizer with `padding` more tokens in front, to give prompts the length of another tokenizer's."""

    padding = 0

    def encode(self, prompts: Iterable[Prompt], cut: int = 0) -> list[Encoded]:
        return [self._pad(encoded) for encoded in super().encode(prompts, cut)]

    def _pad(self, encoded: Encoded) -> Encoded:
        roles = {name: place + self.padding for name, place in encoded.roles.items()}
        return replace(encoded, ids=encoded.ids[:1] * self.padding + encoded.ids, roles=roles)


class RowCountingSurgeon(TorchSurgeon):
    """The torch surgeon; it records the number of rows of its batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row_counts: list[int] = []

    def _run_batch(self, batch: Batch, attention: Attention | None, results: Results) -> None:
        self.row_counts.append(batch.rows.numel())
        super()._run_batch(batch, attention, results)


@dataclass(frozen=True, eq=False)
class HollowModel(LoadedModel):
    """A model of this shape without weights, used like a loaded one."""

    budget: Callable[[], int] | None = None
    tokens: int = 0
    surgeons: list[RowCountingSurgeon] = field(default_factory=list)

    def surgeon(self, *, remember: int = 0) -> RowCountingSurgeon:
        self.surgeons.append(RowCountingSurgeon(self.model, self.anatomy, remember=remember, budget=self.budget))
        return self.surgeons[-1]

    def encoder(self) -> Encoder:
        padded, encoder = PaddedEncoder(self.tokenizer, self.form), super().encoder()
        unpadded = encoder.encode([Stories(encoder).design("published").prompt(0)])
        padded.padding = max(0, self.tokens - len(unpadded[0]))
        return padded


def load_hollow(
    alias: str,
    fake_device: FakeDevice,
    *,
    dtype: Dtype,
    tokens: int,
    budget: Callable[[], int] | None,
    config: PreTrainedConfig | None = None,
    **overrides: Any,
) -> HollowModel:
    """A hollow model in the shape of an alias, or of another model's `config`. Prompts of the published design have
    `tokens` tokens, or more if the embedded tokenizer needs them."""
    config = config or shape_config(alias)
    for name, value in overrides.items():
        setattr(config, name, value)
    config._experts_implementation = "batched_mm"  # which tokens an expert gets is unknown without numbers
    name, tokenizer = f"shape:{alias}", build_tokenizer()
    with fake_device:
        model = skeleton(config, torch_dtype(dtype), torch.device("meta"))
        move_to_fake_device(model, fake_device, {"": fake_accelerator()})
        anatomy = derive_checked(model)
    form = form_for(name, Origin("shape", alias), tokenizer)
    return HollowModel(
        name, lambda: model, tokenizer, anatomy, form, dtype, fake_accelerator(),
        known_fingerprint=f"{name}, without weights", budget=budget, tokens=tokens,
    )  # fmt: skip


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
