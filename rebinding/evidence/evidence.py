"""Evidence: one row per example and condition, together with the exact settings that made it."""

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
import pyarrow.parquet as pq

from rebinding.evidence.tables import LargeTable, read_table

KEY = b"rebinding"
SCHEMA = 1
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class EvidenceError(ValueError):
    """Evidence that cannot be read, or cannot be put together."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A table of measurements and what one must know to repeat them; `settings` is plain JSON."""

    experiment: str
    rows: pd.DataFrame
    settings: Mapping[str, Any]
    SUFFIX: ClassVar[str] = ".parquet"

    def save(self, path: Path, address: str | None = None) -> None:
        """Write as Parquet; the settings travel inside the file, and in a store the shard's address."""
        note = {"schema": SCHEMA, "experiment": self.experiment, "settings": self.settings}
        told = json.dumps(note if address is None else {**note, "address": address}, sort_keys=True)
        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: told.encode()})
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
        except Exception as error:  # a file may also say anything of what its columns are to pandas
            raise EvidenceError(f"{path} has columns that pandas does not understand ({error!r})") from error
        return cls(fields["experiment"], rows, fields["settings"])

    @staticmethod
    def address(path: Path) -> str | None:
        """The address that a file says it belongs to; its rows are not read."""
        found: str | None = _fields(path, pq.read_schema(path)).get("address")
        return found


def _fields(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """What a file says of itself, beside its rows."""
    note = (schema.metadata or {}).get(KEY)
    if note is None:
        raise EvidenceError(f"{path} is a Parquet file without settings: it was not written by this project")
    try:
        fields: dict[str, Any] = json.loads(note)
        given = fields["schema"], fields["experiment"], fields["settings"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EvidenceError(f"{path} has settings that this project did not write ({error!r})") from error
    if given[0] != SCHEMA:
        raise EvidenceError(f"{path} has evidence schema {given[0]}; this version reads {SCHEMA}")
    if not isinstance(given[1], str) or not isinstance(given[2], dict):
        raise EvidenceError(f"{path} has settings that are no object, or an experiment that is no name")
    return fields


def merge(shards: Sequence[Evidence]) -> Evidence:
    """Concatenate shards of one experiment; settings that differ are refused, naming where."""
    if not shards:
        raise EvidenceError("nothing to merge")
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


def once(
    function: Callable[Concatenate[Evidence, Arguments], Result],
) -> Callable[Concatenate[Evidence, Arguments], Result]:
    """A function of a piece of evidence and hashable values, whose results are kept as long as the evidence is.

    Evidence does not change once it is made; whoever is given a result leaves it as it is, too.
    """
    known: WeakKeyDictionary[Evidence, dict[Any, Result]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(evidence: Evidence, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        results, key = known.setdefault(evidence, {}), (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = function(evidence, *args, **kwargs)
        return results[key]

    return remembered
