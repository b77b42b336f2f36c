"""Safe reading of Parquet files: the size of a table is checked before it is read, and while it is read.

A few kilobytes of Parquet can contain a billion equal rows, and the size in the file's metadata may be wrong.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST = 1 << 27
"""Cells of a table: a gigabyte of numbers. The largest evidence, a map of 300 prompts, has a fifth of that."""
LARGEST = 1 << 31
"""Bytes of a table in memory; a text may be larger than a number."""
AT_ONCE = 1 << 14
"""Rows of one step; the size is checked after each."""


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
        for piece in file.iter_batches(AT_ONCE):
            size += sum(map(_bytes, piece.columns))
            if size > LARGEST:
                raise LargeTable(f"{path} takes more than {LARGEST} bytes in memory, the largest size of evidence")
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
    if rows * max(columns, 1) > MOST:
        raise LargeTable(f"{path} claims {rows} rows of {columns} columns; evidence has at most {MOST} cells")
    unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if unpacked > LARGEST:
        raise LargeTable(f"{path} claims {unpacked} bytes when unpacked; evidence has at most {LARGEST}")


def _bytes(column: pa.Array) -> int:
    """The size of a column; for texts, their size after expansion."""
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
