"""What the naive experiments share: a model with hooks, the pack's prompts, and entries of its file of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.oracles.by_hand.plain_model import ForwardPass, Plain, Put
from tests.reference.naive.prompts import Record, Records

Head: TypeAlias = tuple[int, int]
Run: TypeAlias = tuple[Record, Sequence[Put]]
Entry: TypeAlias = dict[str, Any]
FORMS = {"space": "object_token_with_space", "no_space": "object_token_without_space"}
"""The names of an answer's two tokens, in `expected.json` and in `prompts.json`."""
BATCH = 192
"""Forward passes at once."""


@dataclass(frozen=True, eq=False)
class Naive:
    """A model and the prompts of a pack."""

    plain: Plain
    records: Records

    @property
    def layers(self) -> range:
        return range(len(self.plain.layers))

    @property
    def heads(self) -> list[Head]:
        """All query heads, as (layer, head)."""
        return [(layer, head) for layer in self.layers for head in range(self.plain.heads)]

    def clean(self, record: Record) -> ForwardPass:
        """Everything about an unedited run."""
        return self.plain.clean(tuple(record["token_ids"]))

    def at(self, record: Record, site: Any, head: Head, place: int) -> Tensor:
        """A head's own part of a site of the unedited run (head_dim,)."""
        return self.clean(record).values[site, head[0]][0, place, self.plain.span(head[1])]

    def logits(self, runs: Sequence[Run], look: Sequence[tuple[Any, int]] = ()) -> tuple[Tensor, dict[Any, Tensor]]:
        """Logits after the last token of edited runs (run, vocabulary), and what was looked at (run, token, width)."""
        parts = [
            self.plain.run([(tuple(record["token_ids"]), puts) for record, puts in runs[start : start + BATCH]], look)
            for start in range(0, len(runs), BATCH)
        ]
        values = {name: torch.cat([part.values[name] for part in parts]) for name in look}
        return torch.cat([part.logits for part in parts]), values


def entry(name: str, settings: Mapping[str, Any], ids: Iterable[int], value: Any) -> Entry:
    """One entry of `expected.json`."""
    numbers = list(ids)
    fields = {"computed_with": "naive hooks", "settings": dict(settings), "n": len(numbers), "ids": numbers}
    return {"name": name, "experiment": name.split("/")[0], **fields, "formula": "see the shown pack", "value": value}


def grid(values: Tensor, naive: Naive) -> Any:
    """A number for every query head, by layer and head."""
    return values.unflatten(-1, (len(naive.layers), -1)).tolist()
