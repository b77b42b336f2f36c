"""z of one head at one token after a change of ONE query, key or value, all else as recorded.

Let p be the recorded attention, v the recorded values, and s the token whose key or value changes:

    value:  z' = z + p[s] (v'[s] - v[s])
    key:    z' = p' v,  p' the softmax of the recorded scores with the score of s recomputed
    query:  z' = p' v,  p' the softmax of all scores, recomputed

No layer runs: a changed key costs a softmax, not the tokens between key and query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.keys import rotate
from rebinding.surgery.recording import LayerCall, Recording
from rebinding.surgery.sites import Read
from rebinding.surgery.torch_surgeon import TorchSurgeon

Component: TypeAlias = Literal["q", "k", "v"]
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

    def changed_z(self, component: Component, raw: Tensor, source: Tensor, token: Tensor) -> Tensor:
        """z (row, head_dim) of rows that continue prompts `source`, with the raw projection at `token` replaced by
        `raw` (row, head_dim). For a query, `token` is the head's own token."""
        if component == "v":
            weight = self.pattern[source, token][:, None]  # (row, 1)
            return self.z[source] + weight * (raw - self.values[source, token])
        cos, sin = (part[0][token][:, None] for part in self.call["position_embeddings"])  # (row, 1, head_dim)
        call = {"position_embeddings": (cos, sin)}
        rotated = rotate(self.attention, raw[:, None, None], call, component)[:, 0, 0]  # (row, head_dim)
        z = self.z[source].clone()
        for prompt in source.unique():
            rows = torch.nonzero(source == prompt).reshape(-1)
            scores = self._scores(component, int(prompt), rotated[rows], token[rows])  # (row, token)
            z[rows] = _softmax(scores, z) @ self.values[prompt]
        return z

    def _scores(self, component: Component, prompt: int, rotated: Tensor, token: Tensor) -> Tensor:
        if component == "q":
            return _scores_of(self, rotated @ self.keys[prompt].T, self.at[prompt])
        scores = self.scores[prompt].repeat(rotated.shape[0], 1)  # (row, token)
        line = self.call["attention_mask"][0, 0, self.at[prompt]]  # (token,)
        own = capped(rotated @ self.query[prompt] * scaling(self.attention), self.softcap)  # (row,)
        scores[torch.arange(len(token)), token] = own + line[token]
        return scores


def receiver_head(surgeon: TorchSurgeon, recording: Recording, layer: int, head: int, at: Tensor) -> ReceiverHead:
    """The head at one token a prompt. Refused where these formulas do not give the recorded z (which must be kept)."""
    anatomy = surgeon.anatomy
    attention = anatomy.layer_modules(surgeon.model)[layer].get_submodule(anatomy.attention)
    read = Read("q_rot", layer, positions=at[:, None], heads=(head,))
    query = surgeon.run(recording, [], [read])[0][:, 0, 0]  # (prompt, head_dim)
    kv, prompts = anatomy.kv_head(head), torch.arange(recording.n_prompts)
    keys, values = (recording.sites[site][layer][:, kv] for site in ("keys", "values"))  # (prompt, token, head_dim)
    call, recorded_z = recording.calls[layer], recording.sites["z"][layer][prompts, head, at]  # (prompt, head_dim)
    blank = torch.zeros_like(keys[..., 0])  # (prompt, token)
    receiver = ReceiverHead(attention, call, at, query, keys, values, blank, blank, recorded_z, anatomy.score_softcap)
    scores = _scores_of(receiver, (keys @ query[..., None])[..., 0], at)  # (prompt, token)
    pattern = _softmax(scores, keys)  # (prompt, token)
    computed = (pattern[:, None] @ values)[:, 0]  # (prompt, head_dim)
    largest = float(scores[scores > MASKED].abs().max())
    bound = ROUNDING * torch.finfo(torch.float32).eps * float(values.abs().max()) * max(1.0, largest)
    if float((computed - recorded_z).abs().max()) > bound:
        raise SurgeryError(
            f"{type(attention).__name__}, layer {layer}: z of head {head}, recomputed from query, keys and values, "
            "differs from the recorded one; this architecture needs support in rebinding/surgery/receivers.py first"
        )
    return replace(receiver, scores=scores, pattern=pattern)


def scaling(attention: nn.Module) -> float:
    """The factor by which the module multiplies its scores."""
    return float(getattr(attention, "scaling", attention.head_dim**-0.5))  # type: ignore[operator]  # an int


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores after the model's soft cap, if it has one."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _scores_of(head: ReceiverHead, products: Tensor, at: Tensor) -> Tensor:
    """Scores (line, token) from products of queries and keys, for queries at `at` (one token, or one a line)."""
    mask: Tensor = head.call["attention_mask"][0, 0][at]  # (token,) or (line, token)
    return capped(products * scaling(head.attention), head.softcap) + mask


def _softmax(scores: Tensor, like: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(like.dtype)
