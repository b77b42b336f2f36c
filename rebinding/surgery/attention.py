"""Eager attention that applies edits.

It is registered with transformers under `NAME` and computes, in this order and with the model's own arguments,

    scores  = softcap(scaling * q k^T) + mask          pattern = softmax(scores)          z = pattern v

as the library's eager attention does, number for number. Edits and reads travel with the call, as the keyword `rules`:
the model and the module hold no state. Without `rules` it is plain eager attention.

**A shared prefix.** In a replay the rows of a batch continue recorded prompts: the keys and values before the window
are those of the recording, the same for every row of one prompt. They are not copied per row; the queries of all rows
of a prompt are multiplied with the one recorded prefix (`SharedPrefix`); only the softmax gets both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "rebinding_eager"

AttentionStage: TypeAlias = Literal["keys", "values", "q_rot", "k_rot", "v_seen", "scores", "pattern", "z"]
"""`keys` and `values` are per KV head, the others per query head."""

HARMLESS = frozenset(
    {
        "sliding_window",  # already in the mask
        "position_ids",
        "position_embeddings",
        "use_cache",
        "is_causal",
        "cache_position",
        "past_key_values",
        "cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
    }
)


class UnknownAttention(NotImplementedError):
    """A model passes its attention an argument that this function does not compute with."""


@dataclass(frozen=True, eq=False)
class SharedPrefix:
    """Recorded keys and values of the prompts that the rows continue, and which row continues which.

    `keys`, `values`: (prompt, kv head, prefix, head_dim). `place` is each row's place in a table of `prompts x width`
    cells, in which the rows of one prompt stand side by side; cells without a row hold zeros and are thrown away. None:
    the rows take turns, prompt 0, 1, 2, ... and again from 0, `width` times.
    """

    keys: Tensor
    values: Tensor
    place: Tensor | None
    width: int

    def scores(self, query: Tensor, own: Tensor) -> Tensor:
        """Products of every row's queries with its prompt's keys, before its `own`: (row, head, query, key)."""
        rows, heads, length, n_own = own.shape
        n_prefix = self.keys.shape[2]
        scores = own.new_empty(rows, heads, length, n_prefix + n_own)
        prefix = self._unpack(self._pack(query) @ self.keys.transpose(2, 3), heads, length)
        scores.view(*prefix.shape[:-1], -1)[..., :n_prefix] = prefix
        scores[..., n_prefix:] = own
        return scores

    def mix(self, pattern: Tensor, own: Tensor) -> Tensor:
        """The prefix's share of z added to each row's `own`: (row, head, query, head_dim)."""
        prefix = self._unpack(self._pack(pattern) @ self.values, own.shape[1], own.shape[2])
        own.view(prefix.shape).add_(prefix)
        return own

    def _pack(self, rows: Tensor) -> Tensor:
        _, heads, length, inner = rows.shape
        prompts, kv = self.keys.shape[:2]
        if self.place is None:
            cells = rows.view(self.width, prompts, kv, heads // kv, length, inner).transpose(0, 1)
        else:
            table = rows.new_zeros(prompts * self.width, heads, length, inner)
            table[self.place] = rows
            cells = table.view(prompts, self.width, kv, heads // kv, length, inner)
        return cells.transpose(1, 2).reshape(prompts, kv, -1, inner)  # (prompt, kv head, row x head x query, inner)

    def _unpack(self, packed: Tensor, heads: int, length: int) -> Tensor:
        """Back to rows, as a view: (row, kv head, head, query, inner), or (turn, prompt, ...) where rows take turns."""
        prompts, kv, _, inner = packed.shape
        cells = packed.view(prompts, kv, self.width, heads // kv, length, inner).transpose(1, 2)
        if self.place is None:
            return cells.transpose(0, 1)
        return cells[self.place // self.width, self.place % self.width]


class Rules(Protocol):
    """What one call may see and change of attention."""

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
        """Return the value, edited or not; same shape, same dtype. Never in place."""

    def per_query_head(self, layer: int) -> bool:
        """Whether this layer needs separate keys and values for every query head."""

    def prefix(self, layer: int) -> SharedPrefix | None:
        """The recorded keys and values before the call's own."""

    @property
    def skip(self) -> int:
        """How many of the call's first queries are not needed; their z is zero."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    rules: Rules | None = None,
    **extra: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention with the edits of `rules`; returns z as (batch, query, head, head_dim) and the pattern."""
    _refuse_unknown(module, attention_mask, query.shape[2], extra)
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # an int on every attention module of the library
    factor = float(module.head_dim) ** -0.5 if scaling is None else scaling  # type: ignore[arg-type]  # likewise

    def see(stage: AttentionStage, tensor: Tensor) -> Tensor:
        return tensor if rules is None else rules.see(layer, stage, tensor)

    prefix, skip = (None, 0) if rules is None else (rules.prefix(layer), rules.skip)
    query, attention_mask = query[:, :, skip:], None if attention_mask is None else attention_mask[:, :, skip:]
    query, key, value = see("q_rot", query), see("keys", key), see("values", value)
    if prefix is None or rules is None or rules.per_query_head(layer):
        group = query.shape[1] // key.shape[1]
        key = see("k_rot", key.repeat_interleave(group, dim=1))  # (batch, head, key, head_dim)
        value = see("v_seen", value.repeat_interleave(group, dim=1))  # (batch, head, key, head_dim)
    scores = _grouped(query, key.transpose(2, 3))  # (batch, head, query, key)
    if prefix is not None:
        scores = prefix.scores(query, scores)
    scores = scores.mul_(factor)  # in place: no other reference exists
    if softcap is not None:
        capped = scores.div_(softcap)
        capped = capped.tanh() if capped.requires_grad else capped.tanh_()  # the gradient needs the output of tanh
        scores = capped * softcap if capped.requires_grad else capped.mul_(softcap)
    if attention_mask is not None:
        scores = scores.add_(attention_mask)
    pattern = _softmax(see("scores", scores), s_aux, query.dtype)
    pattern = see("pattern", torch.dropout(pattern, dropout, module.training))
    n_prefix = pattern.shape[-1] - key.shape[2]
    z = _grouped(pattern[..., n_prefix:], value)  # (batch, head, query, head_dim)
    if prefix is not None:
        z = prefix.mix(pattern[..., :n_prefix], z)
    z = see("z", z).transpose(1, 2)  # (batch, query, head, head_dim)
    if skip:
        z = torch.cat([z.new_zeros(z.shape[0], skip, *z.shape[2:]), z], dim=1)
    return z.contiguous(), pattern


def _softmax(scores: Tensor, sinks: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The pattern (row, head, query, key). A head's sink takes its share of the softmax and is no key: rows of the
    pattern sum to less than one."""
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
    column = sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
    with_sink = torch.cat([scores, column], dim=-1)  # (row, head, query, key + 1)
    with_sink = with_sink - with_sink.amax(dim=-1, keepdim=True)
    return torch.softmax(with_sink, dim=-1)[..., :-1].to(dtype)


def _grouped(rows: Tensor, per_kv_head: Tensor) -> Tensor:
    """The product of per-query-head rows with per-KV-head matrices, without copying the matrices."""
    batch, heads, length, inner = rows.shape
    kv = per_kv_head.shape[1]
    if kv == heads:
        return rows @ per_kv_head
    stacked = rows.reshape(batch, kv, heads // kv * length, inner)  # (batch, kv head, head x query, inner)
    return (stacked @ per_kv_head).view(batch, heads, length, -1)


def _refuse_unknown(module: nn.Module, mask: Tensor | None, n_queries: int, extra: dict[str, Any]) -> None:
    unknown = sorted({name for name, value in extra.items() if value is not None} - HARMLESS)
    if unknown:
        raise UnknownAttention(
            f"{type(module).__name__} hands {', '.join(unknown)} to attention, which is not modelled here: edits of "
            "such a model would not be exact. It needs support in rebinding/surgery/attention.py first."
        )
    if mask is None and n_queries > 1:
        raise UnknownAttention(
            f"{type(module).__name__} calls attention without a mask: it would look at the future. "
            f"Register a mask function under the name {NAME!r}, or report this architecture."
        )


def register() -> None:
    """Register the function and its mask with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface  # takes seconds; only needed with a model
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def attention_of(model: PreTrainedModel) -> str:
    """The name of the attention that the text tower of a model runs on."""
    return str(model.config.get_text_config()._attn_implementation)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Run the text tower of a model on another attention, by name."""
    config: Any = model.config
    model.set_attn_implementation(name if config.get_text_config() is config else {"text_config": name})


def install(model: PreTrainedModel) -> None:
    """Run the text tower of a model on this function, and check that it does."""
    register()
    set_attention(model, NAME)
    if attention_of(model) != NAME:
        raise UnknownAttention(
            f"{type(model).__name__} does not let its attention function be chosen (it stays "
            f"{attention_of(model)!r}): its forward pass cannot be edited exactly."
        )
