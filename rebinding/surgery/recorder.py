"""Record one unedited run over many prompts.

Prompts of one design share a beginning: the chat's frame and the instruction. The tokens that all prompts of a call
share are computed once, with the first prompt. The others continue it from the first token in which two prompts
differ, as a replay continues a recorded prompt. The decoder is the model's own; its layers get the window. Earlier
calls have no influence: a recording depends on its own prompts only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.attention import AttentionStage, SharedPrefix
from rebinding.surgery.calling import rule_keywords, watch_module
from rebinding.surgery.recording import (
    LAYER_ARGUMENTS,
    LayerCall,
    OfPrompts,
    RecordedRun,
    TokensBefore,
    cut_call,
    join_calls,
    layer_call,
    site_of_module,
    with_site,
)
from rebinding.surgery.sites import Site, SurgeryError, check_kept_sites, check_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 64
"""Prompts of one pass, or more where the device takes more at once."""
Sites = dict[str, dict[int, Tensor]]
"""Recorded values of some prompts: `sites[site][layer]`, prompts first."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The common beginning of `rows` prompts: the first `length` tokens of a fully recorded prompt."""

    sites: Mapping[str, Mapping[int, Tensor]]
    length: int
    rows: int

    def prefix(self, layer: int) -> SharedPrefix:
        """Its keys and values, which every prompt continues."""
        keys, values = (self.sites[site][layer][:, :, : self.length] for site in ("keys", "values"))
        return SharedPrefix(keys, values, None, self.rows)


@dataclass(eq=False)
class _Recorder:
    """The rules of a recording run: change nothing (or fix z at given values), keep the requested sites."""

    sites_to_keep: frozenset[str]
    fixed_z: Sequence[Tensor] | None = None
    fixed_mlp: Sequence[Tensor] | None = None
    beginning: Beginning | None = None
    sites: Sites = field(default_factory=dict)

    skip = 0

    @property
    def begin(self) -> int:
        """The first token that is computed."""
        return 0 if self.beginning is None else self.beginning.length

    def keep(self, site: str, layer: int, value: Tensor) -> None:
        self.sites.setdefault(site, {})[layer] = value.detach()

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
        if stage == "z" and self.fixed_z is not None:
            value = self.fixed_z[layer][..., self.begin :, :].to(value).expand_as(value)
        if stage in self.sites_to_keep:
            self.keep(stage, layer, value)
        return value

    def per_query_head(self, layer: int) -> bool:
        return bool(self.sites_to_keep & {"k_rot", "v_seen"})

    def prefix(self, layer: int) -> SharedPrefix | None:
        return None if self.beginning is None else self.beginning.prefix(layer)


@torch.no_grad()
def record(
    model: PreTrainedModel,
    anatomy: Anatomy,
    tokens: Tensor,
    *,
    keep: Collection[Site] = (),
    fixed_z: Sequence[Tensor] | None = None,
    fixed_mlp: Sequence[Tensor] | None = None,
    rows: int = ROWS,
) -> RecordedRun:
    """Run the model once over `tokens` (prompt, token), `rows` prompts at a time, and keep what replays need.

    With `fixed_z`, one tensor (head, token, head_dim) a layer, every head's output is fixed at these values; a tensor
    (prompt, head, token, head_dim) has values for each prompt. With `fixed_mlp`, (token, width) or (prompt, token,
    width), so are outputs of MLPs.
    """
    check_tokens(anatomy, tokens)
    check_kept_sites(keep)
    sites_to_keep = frozenset(keep) | {"keys", "values"}
    is_by_prompt = any(values.ndim == 4 for values in fixed_z or ())  # then no beginning is common
    common = 0 if anatomy.has_mixers or is_by_prompt else common_beginning(tokens)  # a mixer needs every token
    sizes = [1, tokens.shape[0] - 1] if common else [tokens.shape[0]]
    first, *rest = (part for group in tokens.split(sizes) for part in group.split(rows))
    parts = [_pass(model, anatomy, first, _Recorder(sites_to_keep, fixed_z, fixed_mlp))]
    for part in rest:
        beginning = Beginning(parts[0][0], common, part.shape[0]) if common else None
        parts.append(_pass(model, anatomy, part, _Recorder(sites_to_keep, fixed_z, fixed_mlp, beginning)))
    sites = {
        site: _join_layers([part[site] for part, _ in parts], common, anatomy.n_layers + (site == "resid"))
        for site in parts[0][0]
    }
    for layer, keys in enumerate(sites.get("keys", [])):  # on its layer's device; it comes from the layer below
        if keys.numel():
            sites["resid"][layer] = sites["resid"][layer].to(keys.device)
    return RecordedRun(tokens, sites, [join_calls(calls) for calls in zip(*(calls for _, calls in parts), strict=True)])


def _join_layers(parts: Sequence[Mapping[int, Tensor]], common: int, n_layers: int) -> list[Tensor]:
    """One site of all prompts, by layer, empty where a layer lacks it; parts after the first lack the `common` first
    tokens."""
    layers = [torch.empty(0) for _ in range(n_layers)]
    for layer in parts[0]:
        values = [part[layer] for part in parts]
        layers[layer] = _join_prompts(values, common) if common else torch.cat(values)
    return layers


def _join_prompts(parts: Sequence[Tensor], common: int) -> Tensor:
    first, *rest = parts
    axis, length = first.ndim - 2, first.shape[-2]  # (prompt, [head,] token, width)
    joined = first.new_empty(sum(part.shape[0] for part in parts), *first.shape[1:])
    joined[:1] = first
    joined[1:].narrow(axis, 0, common).copy_(first.narrow(axis, 0, common))
    for rows, own in zip(joined[1:].split([part.shape[0] for part in rest]), rest, strict=True):
        rows.narrow(axis, common, length - common).copy_(own)
    return joined


def common_beginning(tokens: Tensor) -> int:
    """The number of common first tokens of all prompts; 0 for a single prompt, and never all tokens."""
    if tokens.shape[0] == 1:
        return 0
    differs = (tokens != tokens[:1]).any(dim=0)  # (token,)
    differs[-1] = True  # at least one token must be computed
    return int(differs.to(torch.int8).argmax())


def _pass(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, recorder: _Recorder
) -> tuple[Sites, list[LayerCall]]:
    calls: list[LayerCall] = []
    with ExitStack() as hooks:
        for number, layer in enumerate(anatomy.layer_modules(model)):
            _watch_layer(hooks, layer, anatomy, anatomy.parts[number], recorder, calls)
        embedding = next(model.get_input_embeddings().parameters())
        with suppress(_LastLayerDone):
            model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False)
    return recorder.sites, calls


class _LastLayerDone(Exception):
    """Stops the decoder: what comes after its layers is not recorded, and some models need all tokens for it."""


def _watch_layer(
    hooks: ExitStack,
    layer: nn.Module,
    anatomy: Anatomy,
    parts: LayerParts,
    recorder: _Recorder,
    calls: list[LayerCall],
) -> None:
    """Record a layer's call and its sites, and bring the rules to its attention."""
    number, rules = parts.number, rule_keywords(hooks, layer, anatomy, parts, recorder)

    def before_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, keywords = _by_name(module, args, kwargs)
        resid = anatomy.from_layer(hidden)  # (row, token, hidden)
        calls.append(layer_call(type(module).__name__, keywords, anatomy))
        if recorder.begin and number == 0:  # later layers get the output of the first
            resid = resid[:, recorder.begin :]
        recorder.keep("resid", number, resid)
        return (anatomy.to_layer(resid),), {**keywords, **_window(calls[-1], keywords, recorder.begin, resid), **rules}

    def after_layer(module: nn.Module, args: Any, output: Any) -> None:
        value = anatomy.from_layer(output[0] if isinstance(output, tuple) else output)
        recorder.keep("resid", number + 1, value)
        raise _LastLayerDone

    def fix_mlp(raw: Any, values: Tensor) -> Any:
        before = site_of_module(parts, "mlp_out", raw, recorder.sites["resid"][number].shape[0])
        return with_site(parts, "mlp_out", raw, values[..., recorder.begin :, :].to(before).expand_as(before))

    def keep_site(site: str, value: Any, name: str = "") -> None:
        rows = recorder.sites["resid"][number].shape[0]
        recorder.keep(name or site, number, site_of_module(parts, site, value, rows))

    hooks.enter_context(layer.register_forward_pre_hook(before_layer, with_kwargs=True))
    if number == anatomy.n_layers - 1:
        hooks.enter_context(layer.register_forward_hook(after_layer))
    if recorder.fixed_mlp is not None:  # before its output is kept
        watch_module(hooks, layer, *parts.module_of("mlp_out"), partial(fix_mlp, values=recorder.fixed_mlp[number]))
    if "resid_mid" in recorder.sites_to_keep and not anatomy.lacks_middle:

        def keep_middle(added: Any) -> None:
            value = added[0] if isinstance(added, tuple) else added
            recorder.keep("resid_mid", number, anatomy.middle(recorder.sites["resid"][number], value))

        watch_module(hooks, layer, anatomy.last_of_attention(parts), "output", keep_middle)
    for site in recorder.sites_to_keep & {"q", "k", "v", "mlp_out"}:
        if site == "mlp_out" or (parts.n_heads if site == "q" else parts.has_own_keys):
            watch_module(hooks, layer, *parts.module_of(site), partial(keep_site, site))
    if number in anatomy.key_sources:
        for site in ("k", "v"):
            see = partial(keep_site, site, name=f"shared_{site}")
            watch_module(hooks, layer, *parts.module_of(site), see)
    if parts.mixer:
        watch_module(hooks, layer, parts.mixer, "input", partial(recorder.keep, "mixer_input", number))
    if "z" in recorder.sites_to_keep:
        source = parts.output or parts.mixer
        watch_module(hooks, layer, source, "output", partial(recorder.keep, "attention_output", number))


def _by_name(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """A layer's residual input, and its other arguments by parameter name."""
    signature = _signature(type(layer).forward)
    arguments = signature.bind(layer, *args, **kwargs).arguments
    keywords: dict[str, Any] = {}
    for place, (name, value) in enumerate(arguments.items()):
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise SurgeryError(
                f"{type(layer).__name__} is called with {len(value)} arguments without a name: a replay cannot "
                "repeat them"
            )
        if place > 0:  # the first is the layer itself
            keywords |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return keywords.pop("hidden_states"), keywords


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def _window(call: LayerCall, keywords: dict[str, Any], begin: int, resid: Tensor) -> LayerCall:
    """A layer's keywords that differ between windows, cut to the computed tokens."""
    if begin == 0:
        return {}
    per_token = {key: keywords[key] for key in LAYER_ARGUMENTS if keywords.get(key) is not None}
    replaced = {key: value for key, value in call.items() if isinstance(value, (TokensBefore, OfPrompts))}
    return cut_call(per_token | replaced, begin, begin + resid.shape[1], resid.device)
