"""What one head at one token makes of ONE changed query, key or value, all else as recorded.

Let p be the head's attention and v the values, as recorded, and let the key or value at token s change:

    value:  z' = z + p[s] (v'[s] - v[s])
    key:    z' = p' v,  p' the softmax of the same scores with that of s computed anew
    query:  z' = p' v,  p' the softmax of all scores computed anew

No layer is run for this: a changed key costs a softmax, not the tokens between the key and the query.
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
ones), by which a head worked out here may differ from the recorded one: sums of some tens of terms in another order. An
architecture that does anything else differs by far more."""
MASKED = -1e30
"""Below every score that a key can have."""


@dataclass(frozen=True, eq=False)
class Ear:
    """A head at one token of each recorded prompt, with all that it hears there.

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

    def hears(self, component: Component, raw: Tensor, source: Tensor, token: Tensor) -> Tensor:
        """z (row, head_dim) in rows that continue prompts `source`, in which `raw` (row, head_dim) takes the place of
        the raw projection at `token`: for a query that is the head's own token."""
        if component == "v":
            weight = self.pattern[source, token][:, None]  # (row, 1)
            return self.z[source] + weight * (raw - self.values[source, token])
        cos, sin = (part[0][token][:, None] for part in self.call["position_embeddings"])  # (row, 1, head_dim)
        call = {"position_embeddings": (cos, sin)}
        turned = rotate(self.attention, raw[:, None, None], call, component)[:, 0, 0]  # (row, head_dim)
        found = self.z[source].clone()
        for prompt in source.unique():
            rows = torch.nonzero(source == prompt).reshape(-1)
            scores = self._scores(component, int(prompt), turned[rows], token[rows])  # (row, token)
            found[rows] = _softmax(scores, found) @ self.values[prompt]
        return found

    def _scores(self, component: Component, prompt: int, turned: Tensor, token: Tensor) -> Tensor:
        if component == "q":
            return _scored(self, turned @ self.keys[prompt].T, self.at[prompt])
        scores = self.scores[prompt].repeat(turned.shape[0], 1)  # (row, token)
        line = self.call["attention_mask"][0, 0, self.at[prompt]]  # (token,)
        own = capped(turned @ self.query[prompt] * scaling(self.attention), self.softcap)  # (row,)
        scores[torch.arange(len(token)), token] = own + line[token]
        return scores


def ear(surgeon: TorchSurgeon, recording: Recording, layer: int, head: int, at: Tensor) -> Ear:
    """The head at one token a prompt; refused where these formulas do not give what was recorded (z must be kept)."""
    anatomy = surgeon.anatomy
    attention = anatomy.layer_modules(surgeon.model)[layer].get_submodule(anatomy.attention)
    read = Read("q_rot", layer, positions=at[:, None], heads=(head,))
    query = surgeon.run(recording, [], [read])[0][:, 0, 0]  # (prompt, head_dim)
    kv, every = anatomy.kv_head(head), torch.arange(recording.n_prompts)
    keys, values = (recording.sites[site][layer][:, kv] for site in ("keys", "values"))  # (prompt, token, head_dim)
    call, there = recording.calls[layer], recording.sites["z"][layer][every, head, at]  # (prompt, head_dim)
    blank = torch.zeros_like(keys[..., 0])  # (prompt, token)
    found = Ear(attention, call, at, query, keys, values, blank, blank, there, anatomy.score_softcap)
    scores = _scored(found, (keys @ query[..., None])[..., 0], at)  # (prompt, token)
    pattern = _softmax(scores, keys)  # (prompt, token)
    worked_out = (pattern[:, None] @ values)[:, 0]  # (prompt, head_dim)
    largest = float(scores[scores > MASKED].abs().max())
    bound = ROUNDING * torch.finfo(torch.float32).eps * float(values.abs().max()) * max(1.0, largest)
    if float((worked_out - there).abs().max()) > bound:
        raise SurgeryError(
            f"{type(attention).__name__}, layer {layer}: head {head} is recorded otherwise than its queries, keys and "
            "values give; this architecture needs support in rebinding/surgery/heard.py first"
        )
    return replace(found, scores=scores, pattern=pattern)


def scaling(attention: nn.Module) -> float:
    """What the module multiplies its scores by."""
    return float(getattr(attention, "scaling", attention.head_dim**-0.5))  # type: ignore[operator]  # an int


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores after the model's soft cap, if it has one."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _scored(of: Ear, products: Tensor, at: Tensor) -> Tensor:
    """Scores (line, token) from products of queries and keys, for queries at `at` (one token, or one a line)."""
    mask: Tensor = of.call["attention_mask"][0, 0][at]  # (token,) or (line, token)
    return capped(products * scaling(of.attention), of.softcap) + mask


def _softmax(scores: Tensor, like: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(like.dtype)
