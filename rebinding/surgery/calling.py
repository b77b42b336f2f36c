"""Call one decoder layer of a model on some rows and tokens, as the model calls it.

What differs between families is here: residual streams side by side, keywords that do not reach attention, a gate
between attention and output projection, keys and values of another layer, and mixers.

**Mixers.** A recurrent or convolutional layer depends on every earlier token. Its mixer runs from the beginning of the
prompt: on the recorded input before the window, and on the layer's own input in the window.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import Rules, SharedPrefix, Stage
from rebinding.surgery.parts import End, LayerParts
from rebinding.surgery.recording import LayerCall

Keys: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of some rows: (row, kv head, token, head_dim) each."""


@dataclass(frozen=True, eq=False)
class MixerRun:
    """How a layer's mixer runs: `before`, its input (row, token, hidden) before the window, is put before the window's
    own; or `output`, its output over the window, replaces what it computes."""

    before: Tensor | None = None
    output: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _BehindGate:
    """Rules of a family with a gate: z is what leaves the gate, so what attention returns is no site."""

    rules: Rules

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        return value if stage == "z" else self.rules.see(layer, stage, value)

    def per_query_head(self, layer: int) -> bool:
        return self.rules.per_query_head(layer)

    def prefix(self, layer: int) -> SharedPrefix | None:
        return self.rules.prefix(layer)

    @property
    def skip(self) -> int:
        return self.rules.skip


def call_layer(
    layer: nn.Module,
    anatomy: Anatomy,
    number: int,
    hidden: Tensor,
    call: LayerCall,
    rules: Rules | None,
    *,
    shared: MutableMapping[int, Keys] | None = None,
    mixer: MixerRun | None = None,
) -> Tensor:
    """A layer's output (row, token, hidden) on `hidden`, with `call` cut to its rows and tokens.

    `shared` holds keys and values of layers from which others take theirs: a layer reads and adds its own.
    """
    parts = anatomy.parts[number]
    with ExitStack() as hooks:
        keywords = {**call, **rule_keywords(hooks, layer, anatomy, parts, rules)}
        if mixer is not None and parts.mixer:
            _run_mixer(hooks, layer, parts.mixer, mixer)
        if shared is not None and (kind := key_kind(layer, parts)):
            keywords["shared_kv_states"] = {kind: shared.get(parts.key_layer)}
        out: Any = layer(anatomy.to_layer(hidden), **keywords, use_cache=False)
        if shared is not None and kind and parts.has_own_keys and keywords["shared_kv_states"][kind] is not None:
            shared[number] = keywords["shared_kv_states"][kind]
    return anatomy.from_layer(out[0] if isinstance(out, tuple) else out)


def key_kind(layer: nn.Module, parts: LayerParts) -> str:
    """The name under which a layer's keys and values are shared; empty where layers do not share them."""
    attention: Any = layer.get_submodule(parts.attention) if parts.n_heads else None
    return str(attention.layer_type) if hasattr(attention, "is_kv_shared_layer") else ""


def rule_keywords(
    hooks: ExitStack, layer: nn.Module, anatomy: Anatomy, parts: LayerParts, rules: Rules | None
) -> dict[str, Any]:
    """The keyword that brings rules to a layer's attention; hooks where a keyword does not get there."""
    if rules is None or parts.mixer:
        return {}
    if parts.has_gate:
        rules = _watch_gate(hooks, layer, parts, rules)
    if not anatomy.needs_hook:
        return {"rules": rules}

    def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "rules": rules}

    attention = layer.get_submodule(parts.attention)
    hooks.enter_context(attention.register_forward_pre_hook(add, with_kwargs=True))
    return {}


def _watch_gate(hooks: ExitStack, layer: nn.Module, parts: LayerParts, rules: Rules) -> Rules:
    """Let the rules see z where it enters the output projection."""

    def see(value: Tensor) -> Tensor | None:
        z = value.unflatten(-1, (parts.n_heads, -1)).transpose(1, 2)  # (row, head, token, head_dim)
        seen = rules.see(parts.number, "z", z)
        return None if seen is z else seen.transpose(1, 2).flatten(2)

    watch_module(hooks, layer, parts.output, "input", see)
    return _BehindGate(rules)


def _run_mixer(hooks: ExitStack, layer: nn.Module, path: str, run: MixerRun) -> None:
    before, held = run.before, run.output
    if held is not None:
        watch_module(hooks, layer, path, "output", lambda output: held.to(output))
    elif before is not None:
        watch_module(hooks, layer, path, "input", lambda own: torch.cat([before.to(own), own], dim=1))
        watch_module(hooks, layer, path, "output", lambda output: output[:, before.shape[1] :])


def watch_module(hooks: ExitStack, layer: nn.Module, path: str, end: End, see: Callable[[Any], Any]) -> None:
    """Call `see` with what a module below a layer takes or puts out; what it returns, if not None, replaces that."""
    module = layer.get_submodule(path)
    if end == "output":
        hooks.enter_context(module.register_forward_hook(lambda _, args, output: see(output)))
        return

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0] if args else kwargs["hidden_states"]
        changed = see(value)
        if changed is None:
            return None
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
