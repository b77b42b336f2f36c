"""One unedited run over many prompts, and what is kept of it.

Prompts of one design begin alike: the chat's frame and the instruction are the same words. What all prompts of a call
begin with is computed once, with the first prompt; the others continue it, from the first token in which two of them
differ, as a replay continues a recorded prompt. The decoder is the model's own; its layers are handed the window.
Nothing is taken over from earlier calls: a recording depends on its own prompts and not on what was run before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.checks import SurgeryError, check_tokens
from rebinding.surgery.recording import PASSED, LayerCall, Recording, cut_call, layer_call, site_of_output
from rebinding.surgery.sites import Site, check_kept_sites

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kept = dict[str, list[Tensor]]
"""What was kept of some prompts: `kept[site][layer]`, prompts first."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """What `rows` prompts have in common: the first `length` tokens of a prompt of which everything was kept."""

    kept: Mapping[str, list[Tensor]]
    length: int
    rows: int

    def prefix(self, layer: int) -> SharedPrefix:
        """Its keys and values, which every prompt continues."""
        keys, values = (self.kept[site][layer][:, :, : self.length] for site in ("keys", "values"))
        return SharedPrefix(keys, values, None, self.rows)


@dataclass(eq=False)
class _Recorder:
    """The rules of a recording run: change nothing (or hold z at given values), keep what was asked for."""

    wanted: frozenset[str]
    held: Sequence[Tensor] | None = None
    beginning: Beginning | None = None
    kept: Kept = field(default_factory=dict)

    skip = 0

    @property
    def begin(self) -> int:
        """The first token that is computed."""
        return 0 if self.beginning is None else self.beginning.length

    def keep(self, site: str, value: Tensor) -> None:
        self.kept.setdefault(site, []).append(value.detach())

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage == "z" and self.held is not None:
            value = self.held[layer][:, self.begin :].to(value)[None].expand_as(value)
        if stage in self.wanted:
            self.keep(stage, value)
        return value

    def per_query_head(self, layer: int) -> bool:
        return bool(self.wanted & {"k_rot", "v_seen"})

    def prefix(self, layer: int) -> SharedPrefix | None:
        return None if self.beginning is None else self.beginning.prefix(layer)


@torch.no_grad()
def record(
    model: PreTrainedModel,
    anatomy: Anatomy,
    tokens: Tensor,
    *,
    keep: Collection[Site] = (),
    held: Sequence[Tensor] | None = None,
    rows: int = 64,
) -> Recording:
    """Run the model once over `tokens` (prompt, token), `rows` prompts at a time, and keep what replays need.

    With `held`, one tensor (head, token, head_dim) a layer, every head's output is held at these values instead.
    """
    check_tokens(anatomy, tokens)
    check_kept_sites(keep)
    wanted = frozenset(keep) | {"keys", "values"}
    common = common_beginning(tokens)
    sizes = [1, tokens.shape[0] - 1] if common else [tokens.shape[0]]
    first, *others = (part for group in tokens.split(sizes) for part in group.split(rows))
    kept, calls = _pass(model, anatomy, first, _Recorder(wanted, held))
    parts = [kept]
    for part in others:
        beginning = Beginning(kept, common, part.shape[0]) if common else None
        parts.append(_pass(model, anatomy, part, _Recorder(wanted, held, beginning))[0])
    sites = {site: _joined([part[site] for part in parts], common) for site in kept}
    for layer, keys in enumerate(sites.get("keys", [])):  # where its layer computes: it comes from the one below
        sites["resid"][layer] = sites["resid"][layer].to(keys.device)
    return Recording(tokens, sites, calls)


def _joined(parts: Sequence[list[Tensor]], common: int) -> list[Tensor]:
    """One site of all prompts, by layer; parts after the first lack the `common` tokens that they begin with."""
    return [_whole(layers, common) if common else torch.cat(layers) for layers in zip(*parts, strict=True)]


def _whole(parts: Sequence[Tensor], common: int) -> Tensor:
    first, *others = parts
    axis, length = first.ndim - 2, first.shape[-2]  # (prompt, [head,] token, width)
    whole = first.new_empty(sum(part.shape[0] for part in parts), *first.shape[1:])
    whole[:1] = first
    whole[1:].narrow(axis, 0, common).copy_(first.narrow(axis, 0, common))
    for rows, own in zip(whole[1:].split([part.shape[0] for part in others]), others, strict=True):
        rows.narrow(axis, common, length - common).copy_(own)
    return whole


def common_beginning(tokens: Tensor) -> int:
    """How many tokens all prompts begin with; 0 for a single prompt, and never all of them."""
    if tokens.shape[0] == 1:
        return 0
    differs = (tokens != tokens[:1]).any(dim=0)  # (token,)
    differs[-1] = True  # what is computed must not be empty
    return int(differs.to(torch.int8).argmax())


def _pass(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, recorder: _Recorder
) -> tuple[Kept, list[LayerCall]]:
    calls: list[LayerCall] = []
    with ExitStack() as hooks:
        _watch(hooks, model, anatomy, recorder, calls)
        embedding = next(model.get_input_embeddings().parameters())
        model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False, rules=recorder)
    return recorder.kept, calls


def _watch(
    hooks: ExitStack, model: PreTrainedModel, anatomy: Anatomy, recorder: _Recorder, calls: list[LayerCall]
) -> None:
    """Keep what does not pass the attention function."""

    def before_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, given = _by_name(module, args, kwargs)
        calls.append(layer_call(type(module).__name__, given))
        if recorder.begin and len(calls) == 1:  # later layers get what the first one gave
            hidden = hidden[:, recorder.begin :]
        recorder.keep("resid", hidden)
        return (hidden,), {**given, **_window(given, recorder.begin, hidden)}

    def keep_output(site: str, module: nn.Module, args: Any, output: Any) -> None:
        recorder.keep(site, output if site == "attention_output" else site_of_output(anatomy, site, output))

    for layer in anatomy.layer_modules(model):
        hooks.callback(layer.register_forward_pre_hook(before_layer, with_kwargs=True).remove)
        for site in recorder.wanted & {"q", "k", "v", "mlp_out"}:
            module = layer.get_submodule(anatomy.output_of(site).module)
            hooks.callback(module.register_forward_hook(partial(keep_output, site)).remove)
        if "z" in recorder.wanted:
            module = layer.get_submodule(anatomy.output)
            hooks.callback(module.register_forward_hook(partial(keep_output, "attention_output")).remove)
    norm = model.get_submodule(anatomy.final_norm)
    hooks.callback(norm.register_forward_pre_hook(lambda _module, args: recorder.keep("resid", args[0])).remove)


def _by_name(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """A layer's residual, and all else that it is called with, under the names that its forward has for it."""
    signature = _signature(type(layer).forward)
    bound = signature.bind(layer, *args, **kwargs).arguments
    given: dict[str, Any] = {}
    for place, (name, value) in enumerate(bound.items()):
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise SurgeryError(
                f"{type(layer).__name__} is called with {len(value)} arguments that have no name: a replay cannot "
                "repeat them"
            )
        if place > 0:  # the first is the layer itself
            given |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return given.pop("hidden_states"), given


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def _window(given: dict[str, Any], begin: int, hidden: Tensor) -> LayerCall:
    """What of a layer's keywords is bound to tokens, cut to those that are computed."""
    if begin == 0:
        return {}
    bound = {key: given[key] for key in PASSED if given.get(key) is not None}
    return cut_call(bound, begin, begin + hidden.shape[1], hidden.device)
