"""What a run needs of its model: no other run at the same time, evaluation mode, its own precision, our attention.

Runs put hooks on a model's modules, so two threads that use one model would see each other's edits: each run holds the
model's lock. Autocast is off during a run. A model in training mode is refused, because dropout makes each run another
one. Other attention that was set after loading is replaced by ours again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rebinding.surgery.attention import NAME, install
from rebinding.surgery.checks import SurgeryError

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
    """Hold a model for a run on our attention, which is put back if another one was set after loading."""
    with hold(model):
        if model.config.get_text_config()._attn_implementation != NAME:
            install(model)
        yield


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
