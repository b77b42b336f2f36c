"""Tensors of a model that several experiments use: means of head outputs, of queries, of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Activations:
    """Tensors by name; a round trip through a file keeps every bit."""

    tensors: Mapping[str, Tensor]
    SUFFIX: ClassVar[str] = ".safetensors"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write as safetensors; in a store the header has the shard's address."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        try:
            save_file(tensors, path, None if address is None else {"address": address})
        except SafetensorError as error:  # a full disk, in the library's own words
            raise OSError(f"{path} cannot be written ({error})") from error

    @classmethod
    def load(cls, path: Path) -> Activations:
        """Read what `save` wrote, onto the CPU; the caller moves a tensor to its device."""
        return cls(load_file(path))

    @staticmethod
    def address(path: Path) -> str | None:
        """The address in a file's header; its tensors are not read."""
        with safe_open(path, framework="pt") as file:
            address: str | None = (file.metadata() or {}).get("address")
        return address
