"""One forward of the reference: module hooks that write edits outside attention, and a plain attention function.

A raw key or value of one query head is taken from another row, whose edit acts on the whole KV group where the keys are
computed: the library applies its own norm and RoPE there. Both rows are equal below that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.models.trials import Trial
from rebinding.surgery.anatomy import Anatomy, End, LayerParts
from rebinding.surgery.sites import HEADLESS, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Values: TypeAlias = dict[tuple[str, int], Tensor]
"""Sites by (name, layer), as (row, head, token, width), or (row, token, width) without heads."""


@dataclass(eq=False)
class Pass:
    """The edits of the rows of a forward, and the sites that it keeps. With `held`, z and mixers are as in that run."""

    anatomy: Anatomy
    trials: Sequence[Trial | None]
    held: Mapping[tuple[str, int], Tensor] | None
    values: Values
    is_kept: bool

    def visit(self, site: str, layer: int, value: Tensor) -> Tensor:
        """Add the noise of each row's trial to a site (row, [head,] token, width)."""
        for row, trial in enumerate(self.trials):
            if trial is not None and (trial.site, trial.layer) == (site, layer) and trial.group is None:
                value = value.clone()
                noise = trial.value.to(value)
                if site in HEADLESS:
                    value[row, trial.position] += noise[0]
                else:
                    value[row, list(trial.heads or ()), trial.position] += noise[:, 0]
        if self.is_kept or (site, layer) == ("resid", self.anatomy.n_layers):
            self.values[site, layer] = value
        return value

    def hook(self, model: PreTrainedModel, hooks: ExitStack) -> None:
        """Put hooks on all sites outside attention."""
        layers = self.anatomy.layer_modules(model)
        for layer, parts in zip(layers, self.anatomy.parts, strict=True):
            self._watch(hooks, layer, "input", partial(self._see_resid, parts.number))
            self._watch(hooks, layer.get_submodule(parts.mlp[-1]), "output", partial(self._see_mlp, parts.number))
            if parts.mixer:
                self._watch(hooks, layer.get_submodule(parts.mixer), "output", partial(self._hold_mixer, parts.number))
            if parts.n_heads:
                self._watch(hooks, layer.get_submodule(parts.output), "input", partial(self._see_z, parts))
            for site in ("q", "k", "v") if parts.n_heads else ():
                path, end = parts.module_of(site)
                if path:
                    self._watch(hooks, layer.get_submodule(path), end, partial(self._see_projection, parts, site))
        self._watch(hooks, layers[-1], "output", partial(self._see_resid, self.anatomy.n_layers))

    def _watch(self, hooks: ExitStack, module: nn.Module, end: End, see: Callable[[Tensor], Tensor]) -> None:
        """Replace what a module takes or puts out by `see` of it."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (see(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": see(kwargs["hidden_states"])}

        def after(_: nn.Module, args: Any, output: Any) -> Any:
            return (see(output[0]), *output[1:]) if isinstance(output, tuple) else see(output)

        if end == "input":
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            hooks.enter_context(module.register_forward_hook(after))

    def _see_resid(self, layer: int, value: Tensor) -> Tensor:
        return self.anatomy.to_layer(self.visit("resid", layer, self.anatomy.from_layer(value)))

    def _see_mlp(self, layer: int, value: Tensor) -> Tensor:
        by_token = value.reshape(len(self.trials), -1, value.shape[-1])  # some MLPs flatten rows and tokens
        return self.visit("mlp_out", layer, by_token).view_as(value)

    def _hold_mixer(self, layer: int, value: Tensor) -> Tensor:
        """The output of a mixer; that of the unedited run where attention is frozen."""
        if self.held is not None:
            return self.held["mixer", layer].to(value).expand_as(value)
        if self.is_kept:
            self.values["mixer", layer] = value
        return value

    def _see_projection(self, parts: LayerParts, site: str, value: Tensor) -> Tensor:
        flat = value.flatten(2).clone()  # some norms take (row, token, head, head_dim)
        numbers = torch.arange(flat.shape[-1], device=flat.device)[None, None]
        columns = parts.projection(site).heads(numbers, parts.head_dim)[0, :, 0]  # (head, head_dim)
        heads = flat[..., columns].transpose(1, 2)  # (row, head, token, head_dim)
        flat[..., columns] = self.visit(site, parts.number, heads).transpose(1, 2)
        return flat.view(value.shape)

    def _see_z(self, parts: LayerParts, value: Tensor) -> Tensor:
        z = value.unflatten(-1, (-1, parts.head_dim)).transpose(1, 2)  # (row, head, token, head_dim)
        z = z if self.held is None else self.held["z", parts.number].to(z).expand_as(z)
        return self.visit("z", parts.number, z).transpose(1, 2).flatten(2).contiguous()

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Attention as in the textbook, with soft cap and sinks; returns z (row, query, head, head_dim)."""
        owner: Any = module
        layer, group = int(owner.layer_idx), query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))  # (row, head, key, head_dim)
        query = self.visit("q_rot", layer, query)
        key = self.visit("k_rot", layer, self._copy_heads("k", layer, key))
        value = self.visit("v_seen", layer, self._copy_heads("v", layer, value))
        scores = query @ key.transpose(2, 3) * (owner.head_dim**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = self.visit("scores", layer, scores + attention_mask)  # (row, head, query, key)
        pattern = self.visit("pattern", layer, softmax(scores, s_aux))
        return (pattern @ value).transpose(1, 2).contiguous(), pattern

    def _copy_heads(self, site: Site, layer: int, seen: Tensor) -> Tensor:
        """Give the heads of trials that edit copies what they see in the row whose edit acts on the KV group."""
        for row, trial in enumerate(self.trials):
            if trial is not None and trial.group is not None and (trial.site, trial.layer) == (site, layer):
                (source,) = (number for number, other in enumerate(self.trials) if other is trial.group)
                seen, heads = seen.clone(), list(trial.copies)
                seen[row, heads, trial.position] = seen[source, heads, trial.position]
        return seen


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The shares (row, head, query, key) of the keys; a sink of each head takes a share of its own."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
