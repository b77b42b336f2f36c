"""Run a model, or one of its layers, in a known state.

**State**: no other run at the same time, evaluation mode, the model's own precision, our attention.

Runs put hooks on a model's modules, so two threads that use one model would see each other's edits: each run holds the
model's lock. Autocast is off during a run. A model in training mode is refused, because dropout makes each run another
one. A model that has another attention when a run begins has it again afterwards.

**One layer** is called on some rows and tokens, as the model calls it.

What differs between families is here: residual streams side by side, keywords that do not reach attention, a gate
between attention and output projection, keys and values of another layer, and mixers.

**Mixers.** A recurrent or convolutional layer depends on every earlier token. Its mixer runs from the beginning of the
prompt: on the recorded input before the window, and on the layer's own input in the window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, End, LayerParts
from rebinding.surgery.attention import (
    NAME,
    AttentionStage,
    Rules,
    SharedPrefix,
    attention_of,
    install,
    set_attention,
)
from rebinding.surgery.recording import LayerCall
from rebinding.surgery.sites import SurgeryError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AUTOCAST = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices that torch can ask whether autocast is on; of others it raises."""
SAMPLE = 16
"""Values of each tensor that are compared, besides its address and its version."""


@dataclass(frozen=True, eq=False)
class _Held:
    """The lock of a model, and its modules when it was first held."""

    lock: threading.RLock
    modules: tuple[nn.Module, ...]
    rotary: tuple[nn.Module, ...]
    """Modules whose angles may depend on earlier prompts."""


_HELD: WeakKeyDictionary[nn.Module, _Held] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _held(model: nn.Module) -> _Held:
    with _LOCK:
        if model not in _HELD:
            modules = tuple(module for module in model.modules() if module is not model)
            _HELD[model] = _Held(threading.RLock(), modules, tuple(filter(_has_dynamic_angles, modules)))
        return _HELD[model]


@contextmanager
def hold(model: PreTrainedModel) -> Iterator[None]:
    """Run a model alone, as it was loaded, for the length of a block. The same thread may hold it again."""
    held = _held(model)
    with held.lock, ExitStack() as stack:
        if model.training or any(module.training for module in held.modules):
            raise SurgeryError(
                f"{type(model).__name__} is in training mode, in which dropout is random; call model.eval() first"
            )
        kind = model.device.type
        if kind in AUTOCAST and torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
        forget_lengths(model)
        yield


@contextmanager
def run_alone(model: PreTrainedModel) -> Iterator[None]:
    """Hold a model for a run on our attention; another one that it has is put back afterwards."""
    with hold(model):
        previous = attention_of(model)
        if previous == NAME:
            yield
            return
        install(model)
        try:
            yield
        finally:
            set_attention(model, previous)


def forget_lengths(model: nn.Module) -> None:
    """Forget the longest prompt so far: with dynamic RoPE the angles of every later prompt depend on it."""
    for module in _held(model).rotary:
        for prefix in _dynamic_prefixes(module):
            frequencies: Any = getattr(module, f"{prefix}inv_freq")
            original: Tensor = getattr(module, f"{prefix}original_inv_freq")
            module.register_buffer(f"{prefix}inv_freq", original.to(frequencies.device), persistent=False)
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def _has_dynamic_angles(module: nn.Module) -> bool:
    return bool(_dynamic_prefixes(module))


def _dynamic_prefixes(module: nn.Module) -> list[str]:
    """How the names of a rotary module's buffers begin whose kind is dynamic; one kind for each type of layer."""
    kinds = module.__dict__.get("rope_type")
    by_prefix = {f"{name}_": kind for name, kind in kinds.items()} if isinstance(kinds, dict) else {"": kinds or ""}
    return [prefix for prefix, kind in by_prefix.items() if "dynamic" in kind]


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights and hooks of a model when a recording was made; edited runs that continue it need the same.

    A change in place is seen by a tensor's version. A change of `tensor.data` has none, so some of the values are
    compared too: one that leaves `SAMPLE` evenly spaced values of each tensor as they were is not noticed.
    """

    tensors: tuple[tuple[nn.Module, str, Tensor], ...]
    versions: tuple[tuple[int, int], ...]
    """Address and number of changes in place of each tensor."""
    hooks: int
    views: tuple[Tensor, ...]
    """Some values of each tensor, in its own memory, so that they are those of now."""
    sample: Tensor

    @classmethod
    def of(cls, model: PreTrainedModel) -> Weights:
        """The weights and hooks as they are now."""
        own = [(module, name, value) for module in _held(model).modules for name, value in module._parameters.items()]
        tensors = tuple((module, name, value) for module, name, value in own if value is not None)
        views = tuple(value.detach().reshape(-1)[:: max(1, value.numel() // SAMPLE)] for _, _, value in tensors)
        return cls(tensors, _versions(tensors), _count_hooks(model), views, _joined(views))

    def check(self, model: PreTrainedModel) -> None:
        """Raise if the model has other weights or hooks now."""
        versions = _versions(self.tensors)
        changed = [
            f"{type(module).__name__}.{name}"
            for (module, name, value), old, new in zip(self.tensors, self.versions, versions, strict=True)
            if old != new or module._parameters.get(name) is not value
        ]
        if not changed and not torch.equal(_joined(self.views), self.sample):
            changed = ["by tensor.data"]
        if changed or _count_hooks(model) != self.hooks:
            what = f"weights ({changed[0]})" if changed else "hooks"
            raise SurgeryError(
                f"the {what} of {type(model).__name__} changed after this recording was made, and an edited run would"
                " be part old and part new; record the prompts again"
            )


def _versions(tensors: Sequence[tuple[nn.Module, str, Tensor]]) -> tuple[tuple[int, int], ...]:
    return tuple((value.data_ptr(), value._version) for _, _, value in tensors)


def _count_hooks(model: nn.Module) -> int:
    modules = (model, *_held(model).modules)
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


def _joined(views: Sequence[Tensor]) -> Tensor:
    """The values of all views, on the CPU; one transfer from each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for view in views:
        by_device.setdefault(view.device, []).append(view)
    return torch.cat([torch.cat(own).float().cpu() for own in by_device.values()]).nan_to_num()


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

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
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
        if kind := key_kind(layer, parts):  # some versions store keys even where no layer reuses them
            keywords["shared_kv_states"] = {} if shared is None else {kind: shared.get(parts.key_layer)}
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
