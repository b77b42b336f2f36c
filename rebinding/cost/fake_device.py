"""A fake accelerator: its tensors are computed on the CPU, or not at all, and cannot be mixed with CPU tensors.

As on CUDA an operation on tensors of different devices is an error, with the same exceptions: copies, numbers without
dimensions, and indices. `FakeDevice` runs operations and enters their cost into a ledger (`rebinding.cost.ledger`). A
*hollow* fake device computes shapes only: a model of any size takes no memory, and where the program needs a number it
gets a made-up one (`rebinding.cost.hollow`).

The fake devices are called `meta:0`, `meta:1`, ...: a build of torch without CUDA has no other device name whose
operations a dispatch mode can run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rebinding.cost.hollow import expand_masks, fake_numbers
from rebinding.cost.ledger import Ledger
from rebinding.cost.op_cache import META, CachedResult, cache_key, cacheable_result, hollow_like, tensor_signature
from rebinding.cost.operations import OperationFacts, cost_of, facts_of, leaves, map_tensors

CPU = torch.device("cpu")
UNWRITTEN = 101
"""The content of uninitialised memory where it cannot be NaN: far from any position, head or row of a test."""


class MixedDevices(RuntimeError):
    """An operation on tensors of different devices, an error that otherwise only a real accelerator shows."""


def fake_accelerator(index: int = 0) -> torch.device:
    """The fake device of this number."""
    return torch.device("meta", index)


class FakeTensor(torch.Tensor):
    """A tensor on a fake device. Its `inner_tensor` is on the CPU, or hollow (`rebinding.cost.op_cache`)."""

    inner_tensor: Tensor
    fake_device: FakeDevice
    signature: Hashable
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # by dispatch alone

    @staticmethod
    def __new__(cls, inner_tensor: Tensor, device: torch.device, fake_device: FakeDevice) -> FakeTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner_tensor.size(), strides=inner_tensor.stride(), dtype=inner_tensor.dtype, device=device
        )
        tensor.inner_tensor, tensor.fake_device, tensor.signature = (
            inner_tensor,
            fake_device,
            tensor_signature(inner_tensor, device),
        )
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch does not say
        return f"FakeTensor({self.inner_tensor!r}, device={self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own signature says what it does not do
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """For threads that the program starts: they are outside the `with` block of the fake device."""
        tensors = leaves((args, tuple((kwargs or {}).values())))
        first = next(tensor for tensor in tensors if isinstance(tensor, FakeTensor))
        return first.fake_device.__torch_dispatch__(operation, types, args, kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_as_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_as_tensors(index), value)

    @property
    def data(self) -> Any:
        """As on any tensor; setting it exchanges the inner tensor, so that a weight can change its dtype."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, FakeTensor), "a weight on a fake device stays there"
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # a descriptor, says torch elsewhere
        self.inner_tensor, self.signature = value.inner_tensor, value.signature

    def tolist(self) -> Any:
        """The numbers, copied to the CPU."""
        return self.cpu().tolist()


def _as_tensors(index: Any) -> Any:
    """Lists in an index as CPU tensors: torch would make them on the device without dispatch."""
    if isinstance(index, tuple):
        return tuple(torch.tensor(item) if isinstance(item, list) else item for item in index)
    return torch.tensor(index) if isinstance(index, list) else index


class FakeDevice(TorchDispatchMode):
    """A context in which tensors can be on fake devices; the ledger records their operations."""

    def __init__(self, *, hollow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.hollow, self.ledger = hollow, Ledger()
        self.op_cache: dict[Hashable, CachedResult] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not types and kwargs.get("device") is None:  # the CPU's own
            return operation(*args, **kwargs)
        key = cache_key(operation, args, kwargs) if self.hollow else None
        if key in self.op_cache:
            return self._run_cached(self.op_cache[key], operation, args, kwargs)
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        tensors = leaves((args, tuple(kwargs.values())))
        fake_devices = [tensor.device for tensor in tensors if isinstance(tensor, FakeTensor)]
        if not fake_devices and (target is None or target.type != "meta" or target.index is None):
            return operation(*args, **kwargs)
        facts = facts_of(operation)
        if not facts.copies:
            _refuse_mixed(operation, facts, args, tensors)
        if fake_devices:
            self.ledger.add_wait(operation, args, target)
        device = target or args[0].device if facts.copies else target or fake_devices[0]
        if device == CPU or not facts.gives_tensors:
            return self._run_to_cpu(operation, args, kwargs)
        out, cached_result = self._run_on_device(operation, facts, args, kwargs, device)
        if (
            self.hollow
            and cached_result is not None
            and not facts.waits
            and not (facts.indexed and _has_masks(args[1]))
        ):
            self.op_cache[key] = cached_result
        return out

    def _run_to_cpu(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation whose result is on the CPU, or no tensor."""
        if self.hollow:
            return fake_numbers(operation, args, kwargs)
        return operation(*map_tensors(self._inner, args), **map_values(self._inner, kwargs))

    def _run_on_device(
        self, operation: Any, facts: OperationFacts, args: Any, kwargs: dict[str, Any], device: torch.device
    ) -> tuple[Any, CachedResult | None]:
        """Run an operation whose result is on a fake device."""
        if facts.indexed and self.hollow:
            args = (args[0], expand_masks(args[1]), *args[2:])
        fake_args, args, kwargs = args, map_tensors(self._inner, args), map_values(self._inner, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = META if self.hollow else CPU
        out = operation(*args, **kwargs)
        if facts.empty and not self.hollow:
            out.fill_(float("nan") if out.is_floating_point() else UNWRITTEN)
        cost = cost_of(operation, args, kwargs, out)
        self.ledger.add_work(cost)
        cached_result = cacheable_result(operation, args, out, device, cost)
        result = fake_args[0] if facts.in_place else map_tensors(lambda tensor: self.put(tensor, device), out)
        return result, cached_result

    def _run_cached(self, cached_result: CachedResult, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Repeat a cached operation on hollow tensors of the same signature."""
        self.ledger.add_work(cached_result.cost)
        if cached_result.kind == "in_place":
            return args[0]
        if cached_result.kind == "view":
            out = operation(args[0].inner_tensor, *args[1:], **kwargs)
            return map_tensors(lambda tensor: FakeTensor(tensor, cached_result.device, self), out)
        return map_tensors(lambda tensor: self.put(hollow_like(tensor), cached_result.device), cached_result.example)

    def _inner(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor.inner_tensor
        return hollow_like(tensor) if self.hollow and tensor.ndim else tensor

    def put(self, inner_tensor: Tensor, device: torch.device) -> FakeTensor:
        """Put a tensor of the CPU, or a hollow one, on a fake device."""
        self.ledger.add_storage(inner_tensor, device)
        return FakeTensor(inner_tensor, device, self)


def map_values(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same keywords with every tensor exchanged."""
    return {name: map_tensors(function, value) for name, value in kwargs.items()}


def _has_masks(indices: Any) -> bool:
    return any(index.dtype == torch.bool for index in leaves(indices))


def _refuse_mixed(operation: Any, facts: OperationFacts, args: Any, tensors: list[Tensor]) -> None:
    """Raise for mixed devices. Only numbers without dimensions and indices into a device tensor may be on the CPU."""
    indices = {id(index) for index in leaves(args[1])} if facts.indexed and isinstance(args[0], FakeTensor) else set()
    bound = [t for t in tensors if isinstance(t, FakeTensor) or (t.ndim and id(t) not in indices)]
    devices = {tensor.device for tensor in bound}
    if len(devices) > 1:
        shapes = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in bound)
        raise MixedDevices(
            f"{operation} mixes {' and '.join(sorted(map(str, devices)))}: {shapes}. Give a factory device=, or move "
            "one to where the other is with .to(other.device)."
        )


def move_to_fake_device(model: nn.Module, fake_device: FakeDevice, places: Mapping[str, torch.device]) -> None:
    """Put a model's weights and buffers on fake devices, in place; `places` has the devices of modules, by path.

    For a hollow fake device it is a model of meta tensors. Tied weights stay tied.
    """
    parameters: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        device = places[max((outer for outer in places if _contains(outer, path)), key=len)]
        for name, weight in _present(module._parameters):
            if id(weight) not in parameters:
                parameters[id(weight)] = nn.Parameter(fake_device.put(weight.data, device), requires_grad=False)
            module._parameters[name] = parameters[id(weight)]
        for name, buffer in _present(module._buffers):
            module._buffers[name] = fake_device.put(buffer, device)


def _contains(outer: str, path: str) -> bool:
    return outer in ("", path) or path.startswith(f"{outer}.")


def _present(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter([(name, value) for name, value in entries.items() if value is not None])
