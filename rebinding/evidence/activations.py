"""Tensors that a model computed and that several experiments need: means of head outputs, of queries, of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Activations:
    """Tensors by name, bit for bit the same after a round trip through a file."""

    tensors: Mapping[str, Tensor]
    SUFFIX: ClassVar[str] = ".safetensors"

    def save(self, path: Path) -> None:
        """Write as safetensors."""
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}, path)

    @classmethod
    def load(cls, path: Path) -> Activations:
        """Read what `save` wrote, onto the CPU; whoever uses a tensor takes it to where it is needed."""
        return cls(load_file(path))
