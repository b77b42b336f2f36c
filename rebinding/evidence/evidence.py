"""Evidence: one row per example and condition, together with the exact settings that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

KEY = b"rebinding"
SCHEMA = 1


class EvidenceError(ValueError):
    """Evidence that cannot be read, or cannot be put together."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A table of measurements and what one must know to repeat them; `settings` is plain JSON."""

    experiment: str
    rows: pd.DataFrame
    settings: Mapping[str, Any]
    SUFFIX: ClassVar[str] = ".parquet"

    def save(self, path: Path) -> None:
        """Write as Parquet; the settings travel inside the file."""
        note = json.dumps({"schema": SCHEMA, "experiment": self.experiment, "settings": self.settings}, sort_keys=True)
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: note.encode()})
        pq.write_table(table, path, compression="zstd")

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read what `save` wrote."""
        table = pq.read_table(path)
        note = (table.schema.metadata or {}).get(KEY)
        if note is None:
            raise EvidenceError(f"{path} is a Parquet file without settings: it was not written by this project")
        fields = json.loads(note)
        if fields["schema"] != SCHEMA:
            raise EvidenceError(f"{path} has evidence schema {fields['schema']}; this version reads {SCHEMA}")
        return cls(fields["experiment"], table.to_pandas(), fields["settings"])


def merge(shards: Sequence[Evidence]) -> Evidence:
    """Concatenate shards of one experiment; settings that differ are refused, naming where."""
    if not shards:
        raise EvidenceError("nothing to merge")
    first = shards[0]
    for shard in shards[1:]:
        if shard.experiment != first.experiment or dict(shard.settings) != dict(first.settings):
            names = sorted(set(first.settings) | set(shard.settings))
            differing = [name for name in names if first.settings.get(name) != shard.settings.get(name)]
            raise EvidenceError(
                f"evidence of {first.experiment} and {shard.experiment} cannot be merged; they differ in: {differing}"
            )
    return Evidence(first.experiment, pd.concat([shard.rows for shard in shards], ignore_index=True), first.settings)
