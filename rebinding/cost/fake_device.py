"""Tensors that say they are on an accelerator: computed on the CPU, or not at all, and never mixed with the CPU's.

As on CUDA an operation whose tensors stand on different devices is an error, with the same exceptions: copies cross
over, a number without dimensions may come from the CPU, and so may an index. `Pretence` carries operations out and
enters what they would cost into a ledger (`rebinding.cost.ledger`). A *hollow* pretence computes shapes alone: a
model of any size takes no memory, and where the program asks for a number it gets one that was made up
(`rebinding.cost.hollow`).

The pretended devices are called `meta:0`, `meta:1`, ...: no other device that a build of torch without CUDA can name
lets its operations be carried out by somebody else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rebinding.cost.alike import SHAPES, Outcome, form_of, hollow_like, outcome, question
from rebinding.cost.hollow import made_up, without_masks
from rebinding.cost.ledger import Ledger
from rebinding.cost.operations import Known, cost_of, known, leaves, mapped

CPU = torch.device("cpu")
UNWRITTEN = 101
"""What memory holds that nobody has written, if it is no NaN: far from any position, head or row of a test."""


class MixedDevices(RuntimeError):
    """An operation on tensors of different devices: what only a run on an accelerator would show."""


def pretended(index: int = 0) -> torch.device:
    """The pretended device of this number."""
    return torch.device("meta", index)


class Pretended(torch.Tensor):
    """A tensor that says it is on a pretended device and holds one of the CPU, or one without numbers."""

    held: Tensor
    fake_device: FakeDevice
    form: Hashable
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # by dispatch alone

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device, fake_device: FakeDevice) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=device
        )
        made.held, made.fake_device, made.form = held, fake_device, form_of(held, device)
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch does not say
        return f"Pretended({self.held!r}, device={self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own signature says what it does not do
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Threads that a program starts are outside of the block."""
        first = next(one for one in leaves((args, tuple((kwargs or {}).values()))) if isinstance(one, Pretended))
        return first.fake_device.__torch_dispatch__(operation, types, args, kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_as_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_as_tensors(index), value)

    @property
    def data(self) -> Any:
        """As of any tensor; a weight that is set to another dtype holds what it was set to."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, Pretended), "a weight on a pretended device stays there"
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # a descriptor, says torch elsewhere
        self.held, self.form = value.held, value.form

    def tolist(self) -> Any:
        """The numbers, which have to come back for it."""
        return self.cpu().tolist()


def _as_tensors(index: Any) -> Any:
    """Lists in an index as tensors of the CPU: torch would make them on the device, past everybody."""
    if isinstance(index, tuple):
        return tuple(torch.tensor(one) if isinstance(one, list) else one for one in index)
    return torch.tensor(index) if isinstance(index, list) else index


class FakeDevice(TorchDispatchMode):
    """Within this block tensors can be on pretended devices; what happens there is entered in the ledger."""

    def __init__(self, *, hollow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.hollow, self.ledger = hollow, Ledger()
        self.alike: dict[Hashable, Outcome] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if not types and named.get("device") is None:  # the CPU's own
            return operation(*args, **named)
        asked = question(operation, args, named) if self.hollow else None
        if asked in self.alike:
            return self._again(self.alike[asked], operation, args, named)
        given = named.get("device")
        target = None if given is None else torch.device(given)
        tensors = leaves((args, tuple(named.values())))
        there = [one.device for one in tensors if isinstance(one, Pretended)]
        if not there and (target is None or target.type != "meta" or target.index is None):
            return operation(*args, **named)
        what = known(operation)
        if not what.copies:
            _refuse_mixed(operation, what, args, tensors)
        if there:
            self.ledger.may_wait(operation, args, target)
        place = target or args[0].device if what.copies else target or there[0]
        if place == CPU or not what.gives_tensors:
            return self._brought_back(operation, args, named)
        out, found = self._carried_out(operation, what, args, named, place)
        if self.hollow and found is not None and not what.waits and not (what.indexed and _has_masks(args[1])):
            self.alike[asked] = found
        return out

    def _brought_back(self, operation: Any, args: Any, named: dict[str, Any]) -> Any:
        """An operation whose result is on the CPU, or no tensor."""
        if self.hollow:
            return made_up(operation, args, named)
        return operation(*mapped(self._held, args), **mapped_values(self._held, named))

    def _carried_out(
        self, operation: Any, what: Known, args: Any, named: dict[str, Any], place: torch.device
    ) -> tuple[Any, Outcome | None]:
        """An operation whose result is on a pretended device."""
        if what.indexed and self.hollow:
            args = (args[0], without_masks(args[1]), *args[2:])
        given, args, named = args, mapped(self._held, args), mapped_values(self._held, named)
        if named.get("device") is not None:
            named["device"] = SHAPES if self.hollow else CPU
        out = operation(*args, **named)
        if what.empty and not self.hollow:
            out.fill_(float("nan") if out.is_floating_point() else UNWRITTEN)
        cost = cost_of(operation, args, named, out)
        self.ledger.worked(cost)
        found = outcome(operation, args, out, place, cost)
        return (given[0] if what.in_place else mapped(lambda one: self.put(one, place), out)), found

    def _again(self, found: Outcome, operation: Any, args: Any, named: dict[str, Any]) -> Any:
        """An operation on hollow tensors that was carried out before on others like them."""
        self.ledger.worked(found.cost)
        if found.kind == "in_place":
            return args[0]
        if found.kind == "view":
            out = operation(args[0].held, *args[1:], **named)
            return mapped(lambda one: Pretended(one, found.place, self), out)
        return mapped(lambda one: self.put(hollow_like(one), found.place), found.example)

    def _held(self, one: Tensor) -> Tensor:
        if isinstance(one, Pretended):
            return one.held
        return hollow_like(one) if self.hollow and one.ndim else one

    def put(self, held: Tensor, device: torch.device) -> Pretended:
        """A held tensor on a pretended device."""
        self.ledger.allocated(held, device)
        return Pretended(held, device, self)


def mapped_values(function: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The same keywords with every tensor exchanged."""
    return {name: mapped(function, value) for name, value in named.items()}


def _has_masks(indices: Any) -> bool:
    return any(one.dtype == torch.bool for one in leaves(indices))


def _refuse_mixed(operation: Any, what: Known, args: Any, tensors: list[Tensor]) -> None:
    """Numbers without dimensions may come from the CPU, and indices into what is on a device; nothing else may."""
    free = {id(one) for one in leaves(args[1])} if what.indexed and isinstance(args[0], Pretended) else set()
    named = [one for one in tensors if isinstance(one, Pretended) or (one.ndim and id(one) not in free)]
    places = {one.device for one in named}
    if len(places) > 1:
        shapes = ", ".join(f"{tuple(one.shape)} on {one.device}" for one in named)
        raise MixedDevices(
            f"{operation} mixes {' and '.join(sorted(map(str, places)))}: {shapes}. Give a factory device=, or move "
            "one to where the other is with .to(other.device)."
        )


def disguise(model: nn.Module, fake_device: FakeDevice, places: Mapping[str, torch.device]) -> None:
    """Put a model's weights and buffers on pretended devices, in place; `places` are those of modules, by path.

    For a hollow pretence it is a model of meta tensors. Tied weights stay tied.
    """
    done: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        device = places[max((one for one in places if _contains(one, path)), key=len)]
        for name, weight in _present(module._parameters):
            if id(weight) not in done:
                done[id(weight)] = nn.Parameter(fake_device.put(weight.data, device), requires_grad=False)
            module._parameters[name] = done[id(weight)]
        for name, buffer in _present(module._buffers):
            module._buffers[name] = fake_device.put(buffer, device)


def _contains(outer: str, path: str) -> bool:
    return outer in ("", path) or path.startswith(f"{outer}.")


def _present(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter([(name, one) for name, one in named.items() if one is not None])
