"""A model as its library runs it, eagerly, with hooks that set values; it uses no code of the package.

Query heads that share keys and values are taken apart beforehand by repeating the projections' rows, so that "the key
as one head sees it" is an ordinary slice of an output.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

Site: TypeAlias = Literal["resid", "z", "q", "k", "v", "pattern"]
SITES: tuple[Site, ...] = ("resid", "z", "q", "k", "v")
Tokens: TypeAlias = tuple[int, ...]
Head: TypeAlias = tuple[int, int]
"""Layer, and query head."""
BATCH = 192
"""Forward passes at once."""


@dataclass(frozen=True, eq=False)
class Put:
    """A value at a site, a layer and some tokens; of one head, or of all. `pattern` is a head's row of attention: it
    acts as the head's z, which is that row times the values of the run that it is put into."""

    site: Site
    layer: int
    at: int | slice
    value: Tensor
    head: int | None = None
    add: bool = False
    spare: tuple[tuple[int, int], ...] = ()
    """(token, head) that stay as they are."""


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """What full forwards gave, a line a run: logits after the last token, inputs or outputs by site and layer, and
    attention by layer, where it was asked for."""

    logits: Tensor  # (run, vocabulary)
    values: dict[tuple[Site, int], Tensor]  # (run, token, width)
    attention: tuple[Tensor, ...] = ()  # (run, head, query, key) a layer


class Plain:
    """A copy of a model with one projection each for queries, keys and values. What norms of queries and keys make of
    their outputs comes after the sites."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).float().eval()
        self.model.set_attn_implementation("eager")
        config = self.model.config.get_text_config()
        self.heads, self.group = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
        self.layers: Sequence[Any] = list(getattr(self.model.model, "language_model", self.model.model).layers)
        self.all_heads: list[Head] = [(layer, head) for layer in range(len(self.layers)) for head in range(self.heads)]
        self.dim: int = self.layers[0].self_attn.head_dim
        for layer in self.layers:
            layer.self_attn.num_key_value_groups = 1
            for name in ("k_proj", "v_proj"):
                setattr(layer.self_attn, name, self._separate(getattr(layer.self_attn, name)))
        self.clean = lru_cache(maxsize=12)(self._clean)
        self.answer = lru_cache(maxsize=400)(self._answer)

    def _separate(self, shared: Any) -> nn.Linear:
        separate = nn.Linear(shared.in_features, self.heads * self.dim, bias=shared.bias is not None)
        for name, weight in shared.named_parameters():
            rows = weight.detach().unflatten(0, (-1, self.dim)).repeat_interleave(self.group, 0)
            setattr(separate, name, nn.Parameter(rows.flatten(0, 1)))  # (head x head_dim, ...)
        return separate

    def span(self, head: int | None) -> slice:
        """The cells of a head."""
        return slice(None) if head is None else slice(head * self.dim, (head + 1) * self.dim)

    def shares(self, head: int) -> range:
        """The query heads that had one key with this one before they were taken apart."""
        first = head - head % self.group
        return range(first, first + self.group)

    def _clean(self, ids: Tokens) -> ForwardPass:
        """All of an unedited run."""
        return self.run([(ids, ())], [(site, layer) for site in SITES for layer in range(len(self.layers))], True)

    def _answer(self, ids: Tokens) -> Tensor:
        """Logits of an unedited run (vocabulary,)."""
        return self.run([(ids, ())]).logits[0]

    @torch.no_grad()
    def run(
        self,
        runs: Sequence[tuple[Tokens, Sequence[Put]]],
        look: Sequence[tuple[Site, int]] = (),
        attention: bool = False,
    ) -> ForwardPass:
        """Full forwards of prompts of one length, each with what is put into it; `look` says what is kept as it was
        when everything had been put in."""
        if len(runs) > BATCH:
            parts = [self.run(runs[start : start + BATCH], look, attention) for start in range(0, len(runs), BATCH)]
            return ForwardPass(
                torch.cat([part.logits for part in parts]),
                {name: torch.cat([part.values[name] for part in parts]) for name in look},
                tuple(torch.cat(layer) for layer in zip(*(part.attention for part in parts), strict=True)),
            )
        values_by_site: dict[tuple[Site, int], Tensor] = {}
        puts = [list(puts_of_run) for _, puts_of_run in runs]
        touched = {(put.site, put.layer) for puts_of_run in puts for put in puts_of_run}
        values = {("v", layer) for site, layer in touched if site == "pattern"}
        sites = {(("z" if site == "pattern" else site), layer) for site, layer in touched} | {*look} | values
        with ExitStack() as stack:
            for site, layer in sorted(sites):
                handle = self._hook(site, layer, puts, values_by_site)
                stack.callback(handle.remove)
            ids = torch.tensor([list(tokens) for tokens, _ in runs])  # (run, token)
            out = self.model(input_ids=ids, use_cache=False, logits_to_keep=1, output_attentions=attention)
        return ForwardPass(out.logits[:, -1].float(), values_by_site, tuple(out.attentions) if attention else ())

    def _hook(self, site: Any, layer: int, puts: list[list[Put]], values: dict[Any, Tensor]) -> Any:
        attention = self.layers[layer].self_attn

        def changed(value: Tensor) -> Tensor:
            value = value.clone()  # (run, token, width)
            for line, puts_of_run in enumerate(puts):
                for put in puts_of_run:
                    if put.layer == layer and (put.site == site or (put.site == "pattern" and site == "z")):
                        self._put(value[line], put, values[("v", layer)][line] if put.site == "pattern" else None)
            values[(site, layer)] = value
            return value

        if site in ("resid", "z"):
            module = self.layers[layer] if site == "resid" else attention.o_proj
            return module.register_forward_pre_hook(lambda _, args: (changed(args[0]), *args[1:]))
        module = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}[site]
        return module.register_forward_hook(lambda _, args, out: changed(out))

    def _put(self, value: Tensor, put: Put, keys: Tensor | None) -> None:
        """Into one run (token, width)."""
        span = self.span(put.head)
        new = put.value if keys is None else put.value.to(keys) @ keys[:, span]
        spared = [(at, head, value[at, self.span(head)].clone()) for at, head in put.spare]
        value[put.at, span] = value[put.at, span] + new if put.add else new
        for at, head, spared_value in spared:
            value[at, self.span(head)] = spared_value

    def scores(self, ids: Tokens, layers: Sequence[int]) -> float:
        """What no score of attention in these layers exceeds: the longest query times the longest key."""
        values = self.clean(ids).values

        def longest(site: Site, layer: int) -> float:
            return float(values[site, layer][0].unflatten(-1, (self.heads, self.dim)).norm(dim=-1).max())

        return max(longest("q", layer) * longest("k", layer) for layer in layers) / math.sqrt(self.dim)
