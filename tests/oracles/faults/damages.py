"""Kinds of damage to the files of a store. Each returns the shards it has hit: each must be reported once."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file

from rebinding.evidence.evidence import KEY
from tests.oracles.faults.stores import shards

Inflict: TypeAlias = Callable[[Random, Path], list[Path]]
"""Damages one shard, or two, of a store; all that is random comes from the dice."""
BILLION = 1_000_000_000
ROWS = 1_000_003
"""Rows that a forged file has in truth: a number that stands nowhere else in its footer."""


def note(path: Path) -> Path:
    return path.with_suffix(".sha256")


def sealed(path: Path) -> list[Path]:
    """Write the right checksum of a shard that was exchanged, as somebody would who means it."""
    note(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    return [path]


def flipped(dice: Random, path: Path) -> None:
    """Not the line end of a note: any white space after a checksum is as good."""
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 1, 10))):
        content[dice.randrange(len(content.rstrip()))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def cut(dice: Random, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: dice.randrange(1, path.stat().st_size - 1)])


def emptied(dice: Random, path: Path) -> None:
    path.write_bytes(b"")


def locked(dice: Random, path: Path) -> None:
    path.chmod(0)


def removed(dice: Random, path: Path) -> None:
    path.unlink()


def folder(dice: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "thesis.txt").write_text("somebody's only copy")


def link(dice: Random, path: Path) -> None:
    """What it leads to is the very same file, outside of the store."""
    outside_file = path.parents[1].with_name("outside") / path.name
    outside_file.parent.mkdir(exist_ok=True)
    path.rename(outside_file)
    path.symlink_to(outside_file)


def broken_link(dice: Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[2] / "nowhere")


def damage(harm: Callable[[Random, Path], None], *, of_note: bool = False) -> Inflict:
    """Of a shard, or of the note beside it."""

    def inflict(dice: Random, root: Path) -> list[Path]:
        path = dice.choice(shards(root))
        harm(dice, note(path) if of_note else path)
        return [path]

    return inflict


def exchanged(with_note: bool) -> Inflict:
    """Two shards at each other's address."""

    def inflict(dice: Random, root: Path) -> list[Path]:
        first, second = dice.sample(shards(root, ".parquet"), 2)
        pairs = [(first, second), (note(first), note(second))][: 2 if with_note else 1]
        for kept_name, lost_name in pairs:
            content = kept_name.read_bytes(), lost_name.read_bytes()
            kept_name.write_bytes(content[1])
            lost_name.write_bytes(content[0])
        return [first, second]

    return inflict


def rewritten(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Inflict:
    """A valid shard with a right checksum that says something else of itself."""

    def inflict(dice: Random, root: Path) -> list[Path]:
        path = dice.choice(shards(root, ".parquet"))
        table = pq.read_table(path)
        fields = change(json.loads(table.schema.metadata[KEY]))
        pq.write_table(table.replace_schema_metadata({KEY: json.dumps(fields).encode()}), path)
        return sealed(path)

    return inflict


def unnamed(dice: Random, root: Path) -> list[Path]:
    """Valid shards with a right checksum that do not say where they belong, as older versions wrote them."""
    path = dice.choice(shards(root, ".safetensors", ".txt"))
    if path.suffix == ".txt":
        path.write_text(path.read_text().partition("\n")[2])
    else:
        save_file(load_file(path), path)
    return sealed(path)


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


def bomb(make: Callable[[bytes], bytes]) -> Inflict:
    """A few kilobytes at the right address, with the right checksum, that stand for more than there is memory."""

    def inflict(dice: Random, root: Path) -> list[Path]:
        path = dice.choice(shards(root, ".parquet"))
        path.write_bytes(make(pq.read_schema(path).metadata[KEY]))
        assert path.stat().st_size < 20_000
        return sealed(path)

    return inflict


def replace_table(dice: Random, root: Path) -> list[Path]:
    """A Parquet file of somebody else's, and one that is no Parquet file at all."""
    path = dice.choice(shards(root, ".parquet"))
    if dice.random() < 0.5:
        pq.write_table(pa.table({"x": [1, 2]}), path)
    else:
        path.write_bytes(dice.randbytes(2000))
    return sealed(path)


def pipe(dice: Random, path: Path) -> None:
    """Whoever opens it waits for ever."""
    path.unlink()
    os.mkfifo(path)


DAMAGES: Mapping[str, Inflict] = {
    "shard: bits flipped": damage(flipped),
    "shard: cut short": damage(cut),
    "shard: emptied": damage(emptied),
    "shard: may not be read": damage(locked),
    "shard: a folder instead": damage(folder),
    "shard: a link out of the store": damage(link),
    "shard: a link to nowhere": damage(broken_link),
    "shard: a pipe instead": damage(pipe),
    "note: bits flipped": damage(flipped, of_note=True),
    "note: cut short": damage(cut, of_note=True),
    "note: emptied": damage(emptied, of_note=True),
    "note: removed": damage(removed, of_note=True),
    "note: may not be read": damage(locked, of_note=True),
    "note: a folder instead": damage(folder, of_note=True),
    "note: a link out of the store": damage(link, of_note=True),
    "two shards exchanged": exchanged(with_note=False),
    "two shards exchanged with their notes": exchanged(with_note=True),
    "sealed: another schema": rewritten(lambda fields: {**fields, "schema": 99}),
    "sealed: another address": rewritten(lambda fields: {**fields, "address": f"{fields['address'][:-1]}z"}),
    "sealed: no address": rewritten(lambda fields: {name: fields[name] for name in fields if name != "address"}),
    "sealed: no address (tensors, notes)": unnamed,
    "sealed: settings that are none": rewritten(lambda fields: {**fields, "settings": [1]}),
    "sealed: not ours": replace_table,
    "sealed: claims a billion rows": bomb(claiming),
    "sealed: 100 GB of text": bomb(unfolding),
}
