"""Llamas that do something which no config shows: what a self-check has to see, or a replay to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaModel,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from tests.surgery.models import Family, tiny

GAIN = 0.4


class GainedLayer(LlamaDecoderLayer):
    """What it adds is multiplied by a gain that its model gives it: a number, or an object that stands for one."""

    def forward(self, hidden_states: Tensor, gain: Any = 1.0, **kwargs: Any) -> Tensor:  # type: ignore[override]
        out = super().forward(hidden_states, **kwargs)
        return hidden_states + (gain if isinstance(gain, (float, Tensor)) else GAIN) * (out - hidden_states)


class NamelessLayer(GainedLayer):
    """The gain has no name."""

    def forward(self, hidden_states: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        return super().forward(hidden_states, *rest, **kwargs)


class CountingLayer(LlamaDecoderLayer):
    """It counts positions by itself, in the tokens that it gets."""

    turn: Any

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
        positions = torch.arange(hidden_states.shape[1])[None]
        return super().forward(
            hidden_states, **{**kwargs, "position_embeddings": CountingLayer.turn(hidden_states, positions)}
        )


class ScaledLayer(LlamaDecoderLayer):
    """It scales what it puts out: odd, but a replay does the same."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return 1.01 * super().forward(hidden_states, **kwargs)


class Plain(LlamaModel):
    """The library's model, with `step` for the call of a layer."""

    def forward(self, input_ids: Tensor, use_cache: bool = False, **kwargs: Any) -> Any:
        hidden = self.embed_tokens(input_ids)
        positions = torch.arange(hidden.shape[1])[None]
        keywords = {
            "attention_mask": create_causal_mask(self.config, hidden, None, past_key_values=None),
            "position_embeddings": self.rotary_emb(hidden, position_ids=positions),
            "position_ids": positions,
        }
        for number, layer in enumerate(self.layers):
            hidden = self.step(number, layer, hidden, kwargs | keywords)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))

    def step(self, number: int, layer: nn.Module, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        """One layer."""
        out: Tensor = layer(hidden, **keywords)
        return out


class ByKeyword(Plain):
    """It gives its layers a gain by name."""

    gain: Any = GAIN

    def step(self, number: int, layer: nn.Module, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        out: Tensor = layer(hidden, gain=self.gain, **keywords)
        return out


class Varying(ByKeyword):
    """Every layer has its own."""

    def step(self, number: int, layer: nn.Module, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        out: Tensor = layer(hidden, gain=GAIN + 0.2 * number, **keywords)
        return out


class ByPlace(Plain):
    """It gives its layers a gain as their second argument."""

    def step(self, number: int, layer: nn.Module, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        out: Tensor = layer(hidden, GAIN, **keywords)
        return out


class Scaling(Plain):
    """It scales the residual after every layer, where no layer sees it."""

    def step(self, number: int, layer: nn.Module, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        out: Tensor = layer(hidden, **keywords)
        return 1.01 * out


def peculiar(model: type[LlamaModel] = LlamaModel, layer: type[nn.Module] = LlamaDecoderLayer) -> PreTrainedModel:
    """A tiny Llama whose decoder and whose layers are of these classes."""
    model_instance = tiny("llama")
    model_instance.model.__class__ = model
    CountingLayer.turn = model_instance.model.rotary_emb
    for module in model_instance.model.layers:
        module.__class__ = layer
    return model_instance


class Shuffled(LlamaAttention):
    """Heads in another order before attention (`query_order`), or between attention and projection (`value_order`).

    With `tiled`, its own eager attention gives query head h the KV head h % n, and no longer h // group.
    """

    query_order: Sequence[int]
    value_order: Sequence[int]
    tiled: bool

    def forward(  # type: ignore[override]  # nothing is cached here
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        norms: Any = [getattr(self, f"{letter}_norm", nn.Identity()) for letter in "qk"]
        query = norms[0](self.q_proj(hidden_states).view(shape)).transpose(1, 2)[:, self.query_order]
        key = norms[1](self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        eager = _tiled if self.tiled else eager_attention_forward
        attend: Any = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        kwargs |= {"dropout": 0.0, "scaling": self.scaling}
        z, pattern = attend(self, query, key, value, attention_mask, **kwargs)
        return self.o_proj(z[:, :, self.value_order].reshape(*shape[:-2], -1)), pattern


def _tiled(module: Any, query: Tensor, *rest: Any, **kwargs: Any) -> Any:
    order = torch.arange(query.shape[1]).view(-1, query.shape[1] // module.num_key_value_groups).T.flatten()
    z, pattern = eager_attention_forward(module, query[:, order], *rest, **kwargs)
    inverse = torch.argsort(order)
    return z[:, :, inverse], pattern[:, inverse]


def shuffled(
    family: Family, *, query_order: Sequence[int] = range(6), value_order: Sequence[int] = range(6), tiled: bool = False
) -> PreTrainedModel:
    """A tiny model of a family whose attention takes its heads in another order."""
    model = tiny(family)
    for layer in model.model.layers:
        layer.self_attn.__class__ = Shuffled
        layer.self_attn.query_order, layer.self_attn.value_order = list(query_order), list(value_order)
        layer.self_attn.tiled = tiled
    return model
