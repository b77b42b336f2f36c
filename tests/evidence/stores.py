"""A store with one shard of each kind, its files, and tables that are larger than any evidence."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.evidence import MOST_CELLS
from rebinding.evidence.store import KINDS, Activations, Note, Store, cache_key

CONTENTS: Mapping[str, Evidence | Activations | Note] = {
    "evidence": Evidence("toy", pd.DataFrame({"id": [1, 2], "root": [1.0, 2**0.5]}), {"mode": "m", "layers": [0, 1]}),
    "activations": Activations(
        {
            "doubles": torch.arange(12, dtype=torch.float64).view(3, 4).sqrt(),
            "short": torch.arange(5).sqrt().to(torch.bfloat16),
            "turned": torch.arange(6.0).view(2, 3).T,
            "number": torch.tensor(1.5),
        }
    ),
    "note": Note("made\r\nonce"),
}


def is_equal(first: Any, second: Any) -> bool:
    """Whether two shards have the same content, to the bit."""
    if isinstance(first, Evidence):
        same = (first.experiment, first.settings) == (second.experiment, second.settings)
        return same and first.rows.equals(second.rows)
    if isinstance(first, Activations):
        pairs = [(tensor, second.tensors[name]) for name, tensor in first.tensors.items()]
        same = first.tensors.keys() == second.tensors.keys()
        return same and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return bool(first == second)


def fill(root: Path, names: Iterable[str] = CONTENTS) -> list[str]:
    """Get one shard of each kind from a store, check what it returns, and say which shards were computed."""
    computed: list[str] = []

    def compute(name: str) -> Any:
        computed.append(name)
        return CONTENTS[name]

    for name in names:
        kind: type[Any] = type(CONTENTS[name])
        shard = Store(root).remember(kind, "toy", cache_key("model", "float32", "", name), partial(compute, name))
        assert is_equal(CONTENTS[name], shard)
    return computed


def shards(root: Path) -> list[Path]:
    """The shards of a store, in an order that does not depend on the disk."""
    return sorted(path for path in root.rglob("*") if path.suffix in {kind.SUFFIX for kind in KINDS})


def content(root: Path) -> dict[str, bytes]:
    """Every file of a store, except locks, which are empty and stay, and what had to make room for a shard."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    paths = (path for path in files if not any(part.endswith(".aside") for part in path.parts))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def too_many_rows() -> pa.Array:
    """More rows than any evidence has, in a quarter of a megabyte."""
    return pa.nulls(MOST_CELLS + 1)


def too_much_text() -> pa.Array:
    """A hundred gigabytes in a kilobyte: a text of a megabyte, a hundred thousand times."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["a" * 1_000_000]))


BOMBS: tuple[Callable[[], pa.Array], ...] = (too_many_rows, too_much_text)


def write_bomb(make: Callable[[], pa.Array], path: Path) -> None:
    """A small Parquet file that takes more memory than any evidence."""
    file = io.BytesIO()
    table = pa.table({"prompt": make()})
    pq.write_table(table, file, compression="zstd", write_statistics=False, row_group_size=len(table))
    assert len(file.getvalue()) < 1 << 19
    path.write_bytes(file.getvalue())
