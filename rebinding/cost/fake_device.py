"""A fake accelerator: its tensors have shapes and no numbers, and cannot be mixed with tensors on the CPU.

A *hollow* tensor has shape, strides and dtype but no numbers: it is on torch's meta device. A `FakeTensor` wraps one
and gives it a fake device, so a model of any size takes no memory. As on CUDA an operation on tensors of different
devices is an error, with the same exceptions: copies, numbers without dimensions, and indices. `FakeDevice` enters the
cost of operations into a ledger (`rebinding.cost.ledger`). `tests/accelerator` has a fake device with numbers.

The fake devices are called `meta:0`, `meta:1`, ...: a build of torch without CUDA has no other device name whose
operations a dispatch mode can run.

**Cache of operations.** The result of an operation on hollow tensors depends only on shapes, strides, dtypes and
devices, and the layers of a model and the batches of a block repeat the same ones. torch computes many of them in
Python, at a millisecond an operation, and a plan has millions. So each is run once, and its result stands for tensors
with the same shapes and strides, in storage of their own, at the same cost. Only results whose first run showed that
this is valid are cached. An index by a mask depends on the mask's numbers and is never cached.

**Fake numbers.** Where the program needs a number it gets a made-up one. Booleans are true: every edit changes
something, so no edit is skipped as a no-op, and the cost is the most that a run may take. Floats are random between a
half and one: among scores some heads come out lowest, as in a run. Whole numbers are zero.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rebinding.cost.ledger import ATEN, Cost, Ledger, OperationFacts, cost_of, facts_of, leaves, map_tensors

CPU, META = torch.device("cpu"), torch.device("meta")
DICE = torch.Generator().manual_seed(0)


class MixedDevices(RuntimeError):
    """An operation on tensors of different devices, an error that otherwise only a real accelerator shows."""


def fake_accelerator(index: int = 0) -> torch.device:
    """The fake device of this number."""
    return torch.device("meta", index)


class FakeTensor(torch.Tensor):
    """A tensor on a fake device; its `inner_tensor` is hollow."""

    inner_tensor: Tensor
    fake_device: FakeDevice
    signature: Hashable
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # by dispatch alone

    @staticmethod
    def __new__(cls, inner_tensor: Tensor, device: torch.device, fake_device: FakeDevice) -> FakeTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner_tensor.size(), strides=inner_tensor.stride(), dtype=inner_tensor.dtype, device=device
        )
        tensor.inner_tensor, tensor.fake_device = inner_tensor, fake_device
        tensor.signature = tensor_signature(inner_tensor, device)
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


@dataclass(frozen=True, eq=False)
class CachedResult:
    """The result of an operation: views of its first argument, that argument itself, or new tensors like `example`."""

    kind: Literal["view", "in_place", "new"]
    device: torch.device
    cost: Cost
    example: Any = None


class FakeDevice(TorchDispatchMode):
    """A context in which tensors can be on fake devices; the ledger records their operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.ledger = Ledger()
        self.op_cache: dict[Hashable, CachedResult] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not types and kwargs.get("device") is None:  # the CPU's own
            return operation(*args, **kwargs)
        key = cache_key(operation, args, kwargs)
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
        device = target or args[0].device if facts.copies else target or fake_devices[0]
        if device == CPU or not facts.gives_tensors:
            return self.run_to_cpu(operation, args, kwargs)
        out, cached_result = self.run_on_device(operation, facts, args, kwargs, device)
        if cached_result is not None and not facts.waits and not (facts.indexed and _has_masks(args[1])):
            self.op_cache[key] = cached_result
        return out

    def run_to_cpu(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation whose result is on the CPU, or no tensor."""
        return fake_numbers(operation, args, kwargs)

    def run_on_device(
        self, operation: Any, facts: OperationFacts, args: Any, kwargs: dict[str, Any], device: torch.device
    ) -> tuple[Any, CachedResult | None]:
        """Run an operation whose result is on a fake device."""
        fake_args, (args, kwargs) = args, self.inner_arguments(facts, args, kwargs)
        out = operation(*args, **kwargs)
        cost = cost_of(operation, args, kwargs, out)
        self.ledger.add_work(cost)
        cached_result = cacheable_result(operation, args, out, device, cost)
        result = fake_args[0] if facts.in_place else map_tensors(lambda tensor: self.put(tensor, device), out)
        return result, cached_result

    def inner_arguments(self, facts: OperationFacts, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The same arguments without fake devices: all tensors are hollow but for numbers without dimensions."""
        if facts.indexed:
            args = (args[0], expand_masks(args[1]), *args[2:])
        args, kwargs = map_tensors(_as_hollow, args), map_tensors(_as_hollow, kwargs)
        return args, kwargs if kwargs.get("device") is None else {**kwargs, "device": META}

    def _run_cached(self, cached_result: CachedResult, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Repeat a cached operation on hollow tensors of the same signature."""
        self.ledger.add_work(cached_result.cost)
        if cached_result.kind == "in_place":
            return args[0]
        if cached_result.kind == "view":
            out = operation(args[0].inner_tensor, *args[1:], **kwargs)
            return map_tensors(lambda tensor: FakeTensor(tensor, cached_result.device, self), out)
        return map_tensors(lambda tensor: self.put(hollow_like(tensor), cached_result.device), cached_result.example)

    def put(self, inner_tensor: Tensor, device: torch.device) -> FakeTensor:
        """Put a hollow tensor on a fake device."""
        self.ledger.add_storage(inner_tensor, device)
        return FakeTensor(inner_tensor, device, self)


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


def cache_key(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> Hashable:
    """Everything that the result of an operation on hollow tensors can depend on."""
    return operation, signature(args), signature(tuple(kwargs.items())) if kwargs else None


def signature(value: Any) -> Hashable:
    """A tensor as its shape, strides, dtype and device; a number with its type, as 1 equals True."""
    if isinstance(value, Tensor):
        return getattr(value, "signature", None) or tensor_signature(value, value.device)  # a FakeTensor stores it
    if isinstance(value, (list, tuple)):
        return tuple([signature(item) for item in value])
    return type(value), value


def tensor_signature(tensor: Tensor, device: torch.device) -> Hashable:
    """The signature of a tensor as if it were on this device."""
    return tensor.shape, tensor.stride(), tensor.dtype, device


def cacheable_result(operation: Any, args: Any, out: Any, device: torch.device, cost: Cost) -> CachedResult | None:
    """The result of an operation on hollow tensors, if it can be cached."""
    facts = facts_of(operation)
    if facts.in_place:
        return CachedResult("in_place", device, cost)
    if facts.view:
        return CachedResult("view", device, cost)
    results, inputs = leaves(out), leaves(args)
    result_storages, input_storages = set(map(_storage, results)), set(map(_storage, inputs))
    if inputs and result_storages == {_storage(inputs[0])}:  # a view, whatever its schema says
        return CachedResult("view", device, cost)
    is_dense = all(_storage_bytes(result) == _storage_bytes(hollow_like(result)) for result in results)
    has_own_storage = len(result_storages) == len(results) and not result_storages & input_storages
    return CachedResult("new", device, cost, map_tensors(hollow_like, out)) if is_dense and has_own_storage else None


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def hollow_like(tensor: Tensor) -> Tensor:
    """A hollow tensor with the same shape, strides and dtype, in storage of its own."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def _as_hollow(tensor: Tensor) -> Tensor:
    """The inner tensor, or a hollow one in place of a tensor on the CPU that is no number without dimensions."""
    if isinstance(tensor, FakeTensor):
        return tensor.inner_tensor
    return hollow_like(tensor) if tensor.ndim else tensor


def numbers(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Fake numbers on the CPU, in the shape of a tensor."""
    shape = tuple(like.shape)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.empty(shape).uniform_(0.5, 1.0, generator=DICE).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def fake_numbers(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation that copies numbers of a hollow tensor to the CPU."""
    if operation is ATEN.copy_.default:
        return args[0].copy_(numbers(args[1], args[0].dtype))
    if operation is ATEN._to_copy.default:
        return numbers(args[0], kwargs.get("dtype") or args[0].dtype)
    if operation is ATEN._local_scalar_dense.default:
        return numbers(args[0], args[0].dtype).item()
    if operation is ATEN.equal.default:
        return True
    raise NotImplementedError(
        f"{operation} needs numbers of a hollow tensor of shape {tuple(args[0].shape)}: add a case for it to "
        "`fake_numbers` in rebinding/cost/fake_device.py"
    )


def expand_masks(indices: Any) -> list[Any]:
    """Indices with masks of the CPU replaced by positions; the number of true entries of a hollow mask is unknown."""
    expanded: list[Any] = []
    for index in indices:
        if index is None or index.dtype != torch.bool:
            expanded.append(index)
        elif index.device.type == "cpu":
            expanded += index.nonzero(as_tuple=True)
        else:
            raise NotImplementedError(
                f"a hollow mask of shape {tuple(index.shape)} is an index: its number of true entries is unknown"
            )
    return expanded


def move_to_fake_device(model: nn.Module, fake_device: FakeDevice, places: Mapping[str, torch.device]) -> None:
    """Put a model's weights and buffers on fake devices, in place; `places` has the devices of modules, by path.

    The model is one of meta tensors. Tied weights stay tied.
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
