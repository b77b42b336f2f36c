"""Tiny Llamas whose layers carry something that a recording does not hold: each has to be refused, or be exact.

Every branch has a gate or weights of its own, drawn at the model's scale or set to zero, so that it may start out far
below what rounding does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from tests.surgery.models import tiny

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


class Convolution(nn.Module):
    """A causal depthwise convolution over three tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(HIDDEN, HIDDEN, 3, groups=HIDDEN, padding=2, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.kernel(hidden.transpose(1, 2))[..., : hidden.shape[1]]
        return out.transpose(1, 2)


class TokenShift(nn.Module):
    """A share of the token before."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.share * torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)


class RunningMean(nn.Module):
    """A share of the mean over all tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        count = torch.arange(1, hidden.shape[1] + 1)[:, None]
        return self.share * hidden.cumsum(dim=1) / count


class Positions(nn.Module):
    """A learned vector for every position, counted in the tokens that the layer gets."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(256, HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        table: Tensor = self.table[: hidden.shape[1]]
        return table.expand_as(hidden)


class FirstToken(nn.Module):
    """A share of the first token, at any distance."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.share * hidden[:, :1].expand_as(hidden)


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
    "a causal convolution": Convolution,
    "a token shift": TokenShift,
    "a running mean": RunningMean,
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
