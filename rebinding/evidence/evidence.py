"""Evidence: one row per example and condition, with the exact settings behind it; and the safe reading of its files.

A few kilobytes of Parquet can contain a billion equal rows, and the size in the file's metadata may be wrong. So the
size of a table is checked before it is read, and while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY = b"rebinding"
SCHEMA = 1
MOST_CELLS = 1 << 27
"""Cells of a table: a gigabyte of numbers. The largest evidence, a map of 300 prompts, has a fifth of that."""
MOST_BYTES = 1 << 31
"""Bytes of a table in memory; a text may be larger than a number."""
ROWS_AT_ONCE = 1 << 14
"""Rows of one step; the size is checked after each."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class EvidenceError(ValueError):
    """Evidence that cannot be read or merged."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A table of measurements, and the settings to repeat them as plain JSON."""

    experiment: str
    rows: pd.DataFrame
    settings: Mapping[str, Any]
    SUFFIX: ClassVar[str] = ".parquet"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write as Parquet. The file's metadata have the settings, and in a store the shard's address."""
        fields = {"schema": SCHEMA, "experiment": self.experiment, "settings": self.settings}
        note = json.dumps(fields if address is None else {**fields, "address": address}, sort_keys=True)
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: note.encode()})
        pq.write_table(table, path, compression="zstd")

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read what `save` wrote."""
        try:
            table = read_table(path)
        except (pa.ArrowException, LargeTable) as error:
            raise EvidenceError(f"{path} cannot be read as evidence ({error})") from error
        fields = _fields(path, table.schema)
        try:
            rows = table.to_pandas()
        except Exception as error:  # a file's metadata for pandas may say anything
            raise EvidenceError(f"{path} has columns that pandas does not understand ({error!r})") from error
        return cls(fields["experiment"], rows, fields["settings"])

    @staticmethod
    def address(path: Path) -> str | None:
        """The address in a file's metadata; its rows are not read."""
        address: str | None = _fields(path, pq.read_schema(path)).get("address")
        return address


def _fields(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """The metadata of a file: schema, experiment, settings, and perhaps its address."""
    note = (schema.metadata or {}).get(KEY)
    if note is None:
        raise EvidenceError(f"{path} is a Parquet file without settings: it was not written by this project")
    try:
        fields: dict[str, Any] = json.loads(note)
        schema_version, experiment, settings = fields["schema"], fields["experiment"], fields["settings"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EvidenceError(f"{path} has settings that this project did not write ({error!r})") from error
    if schema_version != SCHEMA:
        raise EvidenceError(f"{path} has evidence schema {schema_version}; this version reads {SCHEMA}")
    if not isinstance(experiment, str) or not isinstance(settings, dict):
        raise EvidenceError(f"{path} has settings that are no object, or an experiment that is no name")
    return fields


def merge(shards: Sequence[Evidence]) -> Evidence:
    """Concatenate shards of one experiment; raise with the names of settings that differ."""
    if not shards:
        raise EvidenceError("nothing to merge: give one or more shards")
    first = shards[0]
    for shard in shards[1:]:
        if shard.experiment != first.experiment or dict(shard.settings) != dict(first.settings):
            names = sorted(set(first.settings) | set(shard.settings))
            differing = ["experiment"] * (shard.experiment != first.experiment) + [
                name for name in names if first.settings.get(name) != shard.settings.get(name)
            ]
            raise EvidenceError(
                f"evidence of {first.experiment} and {shard.experiment} cannot be merged; they differ in:"
                f" {', '.join(differing)}"
            )
    return Evidence(first.experiment, pd.concat([shard.rows for shard in shards], ignore_index=True), first.settings)


def cache_by_evidence(
    function: Callable[Concatenate[Evidence, Arguments], Result],
) -> Callable[Concatenate[Evidence, Arguments], Result]:
    """Cache a function of evidence and hashable values. Its results live as long as the evidence.

    Evidence never changes; callers must not change a cached result either.
    """
    cache: WeakKeyDictionary[Evidence, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(function)
    def cached(evidence: Evidence, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        results, key = cache.setdefault(evidence, {}), (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = function(evidence, *args, **kwargs)
        return results[key]

    return cached


class LargeTable(ValueError):
    """A table that is larger than any evidence."""


def read_table(path: Path) -> pa.Table:
    """The table of one file; never a folder, and no columns from the names of folders.

    Texts are read as dictionary codes, and expanded only when their total length is known.
    """
    texts = [field.name for field in pq.read_schema(path) if _is_text(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        _check_claimed(path, file.metadata)
        pieces, size = [], 0
        for piece in file.iter_batches(ROWS_AT_ONCE):
            size += sum(map(_bytes, piece.columns))
            if size > MOST_BYTES:
                raise LargeTable(f"{path} takes more than {MOST_BYTES} bytes in memory, the largest size of evidence")
            pieces.append(piece)
        table = pa.Table.from_batches(pieces, schema=file.schema_arrow)
    for index, field in enumerate(table.schema):
        if field.name in texts:
            table = table.set_column(index, field.with_type(pa.string()), table.column(index).cast(pa.string()))
    return table


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_claimed(path: Path, metadata: pq.FileMetaData) -> None:
    """Check the size in the file's metadata, before the file is read."""
    rows, columns = metadata.num_rows, metadata.num_columns
    if rows * max(columns, 1) > MOST_CELLS:
        raise LargeTable(f"{path} claims {rows} rows of {columns} columns; evidence has at most {MOST_CELLS} cells")
    unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if unpacked > MOST_BYTES:
        raise LargeTable(f"{path} claims {unpacked} bytes when unpacked; evidence has at most {MOST_BYTES}")


def _bytes(column: pa.Array) -> int:
    """The size of a column; for texts, their size after expansion."""
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
