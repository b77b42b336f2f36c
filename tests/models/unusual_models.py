"""Llamas that do something which no config shows: a self-check has to see it, or a replay to repeat it.

Some carry what a recording does not hold: each has to be refused, or be exact. Every branch has a gate or weights of
its own, drawn at the model's scale or set to zero, so that it may start out far below what rounding does.
"""

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

from tests.families.models import Family, tiny

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
            "attention_mask": create_causal_mask(self.config, hidden, None, None),
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


HIDDEN = 24


class Recurrent(nn.Module):
    """A state that decays from token to token."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        state, states = torch.zeros_like(hidden[:, 0]), []
        for token in self.read(hidden).unbind(dim=1):
            state = 0.5 * state + token
            states.append(state)
        out: Tensor = self.write(torch.stack(states, dim=1))
        return out


class Share(nn.Module):
    """A share of something, a dimension at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(HIDDEN))


class TokenShift(Share):
    """A share of the token before."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.share * torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)


class FirstToken(Share):
    """A share of the first token, at any distance."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.share * hidden[:, :1].expand_as(hidden)


class Positions(nn.Module):
    """A learned vector for every position, counted in the tokens that the layer gets."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(256, HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        table: Tensor = self.table[: hidden.shape[1]]
        return table.expand_as(hidden)


class BranchedLayer(LlamaDecoderLayer):
    """A layer to whose output a branch is added, computed from its input."""

    branch: nn.Module

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(hidden_states, **kwargs) + self.branch(hidden_states)
        return out


class ShiftedKeys(LlamaAttention):
    """Keys are mixed with those of the token before, between projection and attention."""

    share: nn.Parameter

    def forward(  # type: ignore[override]  # nothing is cached here
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        return _attend(self, hidden_states, self.share, position_embeddings, attention_mask, kwargs)


class SharedValues(LlamaAttention):
    """Values are mixed with those of the layer below, which it left in a common place."""

    share: nn.Parameter
    common: dict[int, Tensor]

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        return _attend(self, hidden_states, None, position_embeddings, attention_mask, kwargs)


def _attend(
    attention: Any, hidden: Tensor, key_share: Tensor | None, angles: Any, mask: Tensor | None, kwargs: dict[str, Any]
) -> Any:
    """The library's attention, with keys shifted by `key_share`, or values shared with the layer below."""
    shape = (*hidden.shape[:-1], -1, attention.head_dim)
    query = attention.q_proj(hidden).view(shape).transpose(1, 2)
    key, value = (part(hidden).view(shape).transpose(1, 2) for part in (attention.k_proj, attention.v_proj))
    if key_share is not None:
        key = key + key_share * torch.cat([torch.zeros_like(key[:, :, :1]), key[:, :, :-1]], dim=2)
    else:
        previous = attention.common.get(attention.layer_idx - 1)
        attention.common[attention.layer_idx] = value
        value = value if previous is None or previous.shape != value.shape else value + attention.share * previous
    query, key = apply_rotary_pos_emb(query, key, *angles)
    attend: Any = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
    z, pattern = attend(attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling, **kwargs)
    return attention.o_proj(z.reshape(*shape[:-2], -1)), pattern


BRANCHES: dict[str, type[nn.Module]] = {
    "a recurrent branch": Recurrent,
    "a token shift": TokenShift,
    "the first token": FirstToken,
    "absolute positions": Positions,
}
ATTENTIONS: dict[str, type[LlamaAttention]] = {
    "keys of the token before": ShiftedKeys,
    "values of the layer below": SharedValues,
}
NO_STATE = "no state"
KINDS = (*BRANCHES, *ATTENTIONS)


def stateful(kind: str, scale: float, *, initial: float | None = None) -> PreTrainedModel:
    """A tiny Llama with a state of some kind: all matrices of one scale, the weights of the state of scale `own`."""
    torch.manual_seed(0)
    model = tiny("llama")
    common: dict[int, Tensor] = {}
    for layer in model.model.layers:
        if kind in BRANCHES:
            layer.__class__, layer.branch = BranchedLayer, BRANCHES[kind]()
            fresh = list(layer.branch.parameters())
        elif kind == NO_STATE:
            fresh = []
        else:
            layer.self_attn.__class__ = ATTENTIONS[kind]
            layer.self_attn.share, layer.self_attn.common = nn.Parameter(torch.zeros(1)), common
            fresh = [layer.self_attn.share]
        for weight in [weight for weight in layer.parameters() if weight.ndim > 1]:
            torch.nn.init.normal_(weight, std=scale)
        for weight in fresh:
            torch.nn.init.normal_(weight, std=scale if initial is None else initial)
    model.eval().requires_grad_(False)
    return model
