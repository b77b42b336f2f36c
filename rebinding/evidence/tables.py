"""Parquet files read without trust: how much is in one is found out before it is in memory, and while it comes.

A few kilobytes of Parquet can stand for a billion equal rows, and what the file says of its own size may be wrong.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
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
    """The table of one file, and of nothing else: no folder, and no columns read off the names of folders."""
    with pq.ParquetFile(path) as file:
        rows, columns = file.metadata.num_rows, file.metadata.num_columns
        if rows * max(columns, 1) > MOST:
            raise LargeTable(f"{path} claims {rows} rows of {columns} columns; evidence has at most {MOST} cells")
        pieces, size = [], 0
        for piece in file.iter_batches(AT_ONCE):
            size += piece.nbytes
            if size > LARGEST:
                raise LargeTable(f"{path} takes more than {LARGEST} bytes in memory, as no evidence does")
            pieces.append(piece)
        return pa.Table.from_batches(pieces, schema=file.schema_arrow)
