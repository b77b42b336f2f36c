"""Parquet files of a few kilobytes that expand beyond a machine's memory."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from rebinding.evidence.evidence import KEY

BILLION = 1_000_000_000
ROWS = 1_000_003
"""Rows that a forged file has in truth: a number that stands nowhere else in its footer."""


def write_column(column: pa.Array, note: bytes) -> bytes:
    """A table of one column with the settings of a shard."""
    file = io.BytesIO()
    table = pa.table({"prompt": column}).replace_schema_metadata({KEY: note})
    pq.write_table(table, file, compression="zstd", write_statistics=False)
    return file.getvalue()


def claiming(note: bytes) -> bytes:
    """A thousand times as many rows by its footer as there are."""
    full = write_column(pa.nulls(ROWS), note)
    size = int.from_bytes(full[-8:-4], "little")
    footer = full[-8 - size : -8].replace(_varint(ROWS), _varint(BILLION))
    return b"".join((full[: -8 - size], footer, len(footer).to_bytes(4, "little"), full[-4:]))


def unfolding(note: bytes) -> bytes:
    """A text of a megabyte, a hundred thousand times."""
    index, text = pa.array([0] * 100_000, pa.int32()), pa.array(["a" * 1_000_000])
    return write_column(pa.DictionaryArray.from_arrays(index, text), note)


def _varint(number: int) -> bytes:
    """As Thrift's compact protocol writes a whole number: zigzag, seven bits a byte."""
    remaining, encoded = number << 1, bytearray()
    while remaining > 127:
        encoded.append(remaining & 127 | 128)
        remaining >>= 7
    return bytes([*encoded, remaining])
