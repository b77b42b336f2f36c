"""What the naive experiments share: a model with hooks, the pack's prompts, and entries of its file of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from tests.reference.naive.plain_model import ForwardPass, Plain, Tokens
from tests.reference.naive.prompts import Record, Records

Entry: TypeAlias = dict[str, Any]
FORMS = {"space": "object_token_with_space", "no_space": "object_token_without_space"}
"""The names of an answer's two tokens, in `expected.json` and in `prompts.json`."""


@dataclass(frozen=True, eq=False)
class Naive:
    """A model and the prompts of a pack."""

    plain: Plain
    records: Records

    def clean(self, record: Record) -> ForwardPass:
        """Everything about an unedited run."""
        return self.plain.clean(tokens(record))


def tokens(record: Record) -> Tokens:
    return tuple(record["token_ids"])


def entry(name: str, settings: Mapping[str, Any], ids: Iterable[int], value: Any) -> Entry:
    """One entry of `expected.json`."""
    numbers = list(ids)
    fields = {"computed_with": "naive hooks", "settings": dict(settings), "n": len(numbers), "ids": numbers}
    return {"name": name, "experiment": name.split("/")[0], **fields, "formula": "see the shown pack", "value": value}


def grid(values: Tensor, naive: Naive) -> Any:
    """A number for every query head, by layer and head."""
    return values.unflatten(-1, (len(naive.plain.layers), -1)).tolist()
