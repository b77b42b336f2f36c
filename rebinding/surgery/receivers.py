"""z of one head at one token after a change of ONE query, key or value, all else as recorded.

Let p be the recorded attention, v the recorded values, and s the token whose key or value changes:

    value:  z' = z + p[s] (v'[s] - v[s])
    key:    z' = p' v,  p' the softmax of the recorded scores with the score of s recomputed
    query:  z' = p' v,  p' the softmax of all scores, recomputed

No layer runs: a changed key costs a softmax, not the tokens between key and query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import LayerParts
from rebinding.surgery.batch import seen_by_attention, spans_heads
from rebinding.surgery.recording import LayerCall, RecordedRun
from rebinding.surgery.sites import Read, SurgeryError
from rebinding.surgery.torch_surgeon import TorchSurgeon

InputSite: TypeAlias = Literal["q", "k", "v"]
ROUNDING = 16
"""Units in the last place, of the largest value times the largest score (a softmax makes relative errors of absolute
ones), by which z computed here may differ from the recorded z: sums of some tens of terms in another order. An
architecture that does anything else differs by far more."""
MASKED = -1e30
"""Below every score that a key can have."""


@dataclass(frozen=True, eq=False)
class ReceiverHead:
    """A head at one token of each recorded prompt, with its recorded query, keys and values.

    `keys` and `values` are (prompt, token, head_dim), `scores` and `pattern` (prompt, token), `z` (prompt, head_dim).
    """

    attention: nn.Module
    call: LayerCall
    at: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    pattern: Tensor
    z: Tensor
    softcap: float | None
    parts: LayerParts
    sink: Tensor | None
    head: int

    def changed_z(self, site: InputSite, raw: Tensor, source: Tensor, token: Tensor) -> Tensor:
        """z (row, head_dim) of rows that continue prompts `source`, with the raw projection at `token` replaced by
        `raw` (row, head_dim). For a query, `token` is the head's own token."""
        if site == "v":
            weight = self.pattern[source, token][:, None]  # (row, 1)
            raw = self._transformed("v", raw, {})
            return self.z[source] + weight * (raw - self.values[source, token])
        call = {"position_embeddings": _angles_at(self.call.get("position_embeddings"), token)}
        rotated = self._transformed(site, raw, call)  # (row, head_dim)
        z = self.z[source].clone()
        for prompt in source.unique():
            rows = torch.nonzero(source == prompt).reshape(-1)
            scores = self._scores(site, int(prompt), rotated[rows], token[rows])  # (row, token)
            z[rows] = _softmax(scores, z, self.sink) @ self.values[prompt]
        return z

    def _transformed(self, site: InputSite, raw: Tensor, call: LayerCall) -> Tensor:
        """One head's raw vectors (row, head_dim) after its norm and RoPE."""
        heads = self.parts.n_heads if site == "q" else self.parts.n_kv_heads
        head = self.head if site == "q" else self.parts.kv_head(self.head)
        every = raw[:, None, None].expand(-1, heads, -1, -1)  # (row, head, 1, head_dim); some norms differ by head
        return seen_by_attention(self.attention, self.parts, site, every, call)[:, head, 0]

    def _scores(self, site: InputSite, prompt: int, rotated: Tensor, token: Tensor) -> Tensor:
        if site == "q":
            return _scores_of(self, rotated @ self.keys[prompt].T, self.at[prompt])
        scores = self.scores[prompt].repeat(rotated.shape[0], 1)  # (row, token)
        line = self.call["attention_mask"][0, 0, self.at[prompt]]  # (token,)
        own = capped(rotated @ self.query[prompt] * self.parts.score_factor, self.softcap)  # (row,)
        scores[torch.arange(len(token)), token] = own + line[token]
        return scores


def receiver_head(surgeon: TorchSurgeon, recording: RecordedRun, layer: int, head: int, at: Tensor) -> ReceiverHead:
    """The head at one token a prompt. Refused where these formulas do not give the recorded z (which must be kept)."""
    anatomy = surgeon.anatomy
    parts = anatomy.parts[layer]
    attention: Any = anatomy.layer_modules(surgeon.model)[layer].get_submodule(parts.attention)
    if parts.has_gate:
        raise SurgeryError(
            f"{type(attention).__name__}, layer {layer}: a gate multiplies z, which rebinding/surgery/receivers.py "
            "does not compute. Path patching (`rebinding.experiments.paths`) works for such a model"
        )
    for site in ("q", "k"):
        if spans_heads(attention, parts, site):
            raise SurgeryError(f"{type(attention).__name__} normalises all heads together: none has a raw {site} alone")
    reads = [Read(site, at[:, None], (layer, head)) for site in ("q", "q_rot")]
    raw, query = (value[:, 0] for value in surgeon.run(recording, [], reads))  # (prompt, head_dim)
    kv, prompts = parts.kv_head(head), torch.arange(recording.n_prompts)
    keys, values = (recording.sites[site][layer][:, kv] for site in ("keys", "values"))  # (prompt, token, head_dim)
    call, recorded_z = recording.calls[layer], recording.sites["z"][layer][prompts, head, at]  # (prompt, head_dim)
    blank = torch.zeros_like(keys[..., 0])  # (prompt, token)
    sink = attention.sinks[head].detach() if parts.has_sinks else None
    fields = (attention, call, at, query, keys, values, blank, blank, recorded_z, anatomy.score_softcap)
    receiver = ReceiverHead(*fields, parts, sink, head)
    _check_query(receiver, raw)
    scores = _scores_of(receiver, (keys @ query[..., None])[..., 0], at)  # (prompt, token)
    pattern = _softmax(scores, keys, sink)  # (prompt, token)
    computed = (pattern[:, None] @ values)[:, 0]  # (prompt, head_dim)
    largest = float(scores[scores > MASKED].abs().max())
    bound = ROUNDING * torch.finfo(torch.float32).eps * float(values.abs().max()) * max(1.0, largest)
    if float((computed - recorded_z).abs().max()) > bound:
        raise SurgeryError(
            f"{type(attention).__name__}, layer {layer}: z of head {head}, recomputed from query, keys and values, "
            "differs from the recorded one; this architecture needs support in rebinding/surgery/receivers.py first"
        )
    return replace(receiver, scores=scores, pattern=pattern)


def _check_query(receiver: ReceiverHead, raw: Tensor) -> None:
    """Refuse a head whose recorded query does not follow from its raw query."""
    call = {"position_embeddings": _angles_at(receiver.call.get("position_embeddings"), receiver.at)}
    gap = (receiver._transformed("q", raw, call) - receiver.query).abs().max()
    if gap > ROUNDING * torch.finfo(torch.float32).eps * receiver.query.abs().max():
        raise SurgeryError(
            f"{type(receiver.attention).__name__}, layer {receiver.parts.number}: the module does more to a query than "
            "norm and RoPE; this architecture needs support in rebinding/surgery/receivers.py first"
        )


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores after the model's soft cap, if it has one."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _scores_of(head: ReceiverHead, products: Tensor, at: Tensor) -> Tensor:
    """Scores (line, token) from products of queries and keys, for queries at `at` (one token, or one a line)."""
    mask: Tensor = head.call["attention_mask"][0, 0][at]  # (token,) or (line, token)
    return capped(products * head.parts.score_factor, head.softcap) + mask


def _softmax(scores: Tensor, like: Tensor, sink: Tensor | None) -> Tensor:
    """The pattern (line, token); its rows sum to less than one where the head has a sink."""
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores).expand(scores.shape[0], 1)], dim=-1)
    pattern = torch.softmax(scores, dim=-1, dtype=torch.float32).to(like.dtype)
    return pattern if sink is None else pattern[:, :-1]


def _angles_at(angles: Any, token: Tensor) -> Any:
    """The rotation of each row's token: (row, 1, head_dim) each."""
    if isinstance(angles, tuple):
        return tuple(part[0][token][:, None] for part in angles)
    return None if angles is None else angles[0][token][:, None]
