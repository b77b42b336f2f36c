"""Parquet files read without trust: how much is in one is found out before it is in memory, and while it comes.

A few kilobytes of Parquet can stand for a billion equal rows, and what the file says of its own size may be wrong.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST = 1 << 27
"""Cells of a table: a gigabyte of numbers. The largest evidence, a map of 300 prompts, has a fifth of that."""
LARGEST = 1 << 31
"""Bytes of a table in memory; texts may take more than a number does."""
AT_ONCE = 1 << 14
"""Rows read in one step, after each of which it is asked how much it is by now."""


class LargeTable(ValueError):
    """A table that is larger than any evidence."""


def read_table(path: Path) -> pa.Table:
    """The table of one file, and of nothing else: no folder, and no columns read off the names of folders.

    Texts are read as numbers into a list of them, and put together only when it is known how long they are in all.
    """
    texts = [one.name for one in pq.read_schema(path) if _is_text(one.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        _check_claimed(path, file.metadata)
        pieces, size = [], 0
        for piece in file.iter_batches(AT_ONCE):
            size += sum(map(_bytes, piece.columns))
            if size > LARGEST:
                raise LargeTable(f"{path} takes more than {LARGEST} bytes in memory, as no evidence does")
            pieces.append(piece)
        found = pa.Table.from_batches(pieces, schema=file.schema_arrow)
    for place, one in enumerate(found.schema):
        if one.name in texts:
            found = found.set_column(place, one.with_type(pa.string()), found.column(place).cast(pa.string()))
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_claimed(path: Path, about: pq.FileMetaData) -> None:
    """What the file says of its own size, before anything of it is read."""
    rows, columns = about.num_rows, about.num_columns
    if rows * max(columns, 1) > MOST:
        raise LargeTable(f"{path} claims {rows} rows of {columns} columns; evidence has at most {MOST} cells")
    unpacked = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if unpacked > LARGEST:
        raise LargeTable(f"{path} claims {unpacked} bytes when unpacked; evidence has at most {LARGEST}")


def _bytes(column: pa.Array) -> int:
    """How much a column takes; of texts, how much they will take once each stands for itself."""
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
