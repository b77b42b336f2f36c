"""Every number that the paper prints, with its table or sentence.

The data is `published.toml`. A printed number stands for an interval: "0.89" is anything from 0.885 to 0.895, so each
number carries the half-width of its rounding, which follows from the decimals that were printed.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from rebinding.paper.circuit import CircuitHead

Quantity = Literal[
    "accuracy", "margin", "logit", "dR", "dlogit", "switch", "share", "iia", "attention", "count", "setting", "duration"
]
Alias = Literal["gemma2-9b", "gemma3-12b", "llama3.2-3b", "llama3.1-8b"]
Group = Literal["A", "B", "C", "D", "E"]

ALIASES: tuple[Alias, ...] = get_args(Alias)
GROUPS: tuple[Group, ...] = get_args(Group)
ROLE_OF_GROUP: dict[Group, str] = {
    "A": "readout",
    "B": "readout",
    "C": "question_box",
    "D": "swap_partner",
    "E": "context_partner",
}


@dataclass(frozen=True)
class Tolerance:
    """The difference up to which two values of one kind of quantity count as the same.

    `absolute` is in the unit of the kind; `relative` is a share of the printed value, and the larger of the two counts.
    `absolute` is None for facts and settings, which are never judged. `proportion` marks quantities within [0, 1] whose
    spread is at most binomial.
    """

    kind: Quantity
    reason: str
    absolute: float | None = None
    relative: float = 0.0
    proportion: bool = False

    def around(self, value: float) -> float | None:
        """The margin at a printed value."""
        return None if self.absolute is None else max(self.absolute, self.relative * abs(value))


OF_PLANT = "planted"
"""The source of a number that is declared with a planted model."""


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number: `value` +- `half_width`, over `n` prompts and `draws` random draws where stated."""

    id: str
    value: float
    half_width: float
    kind: Quantity
    source: str
    printed: str
    n: int | None = None
    draws: int | None = None
    model: str | None = None

    @property
    def provenance(self) -> Literal["printed", "declared"]:
        """Printed in the paper, or declared with a planted model: what a paper about `pointer` would have printed."""
        return "declared" if self.source == OF_PLANT else "printed"

    @property
    def margin(self) -> float | None:
        """The largest difference of a measurement that agrees; None where the kind is not judged."""
        return tolerance(self.kind).around(self.value)

    @property
    def proportion(self) -> bool:
        """Whether the number is a share of examples, bounded by 0 and 1."""
        return tolerance(self.kind).proportion


@dataclass(frozen=True)
class Checkpoint:
    """A model of the paper and the shape its checkpoint must have."""

    alias: Alias
    paper_name: str
    hub: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    chat: Literal["gemma", "llama3"]


@dataclass(frozen=True)
class Contradiction:
    """A sentence of the paper that its own printed numbers contradict."""

    claim: str
    model: str
    quantity: str
    why: str


def printed_number(
    id: str,
    printed: str,
    *,
    kind: Quantity,
    source: str,
    n: int | None = None,
    draws: int | None = None,
    model: str | None = None,
    percent: bool = False,
    decimals: int = 0,
) -> PublishedNumber:
    """Read a number as it is printed.

    The half-width is half a unit of the last printed place, or of place `decimals` where the column around the number
    prints more. Counts and settings are exact. `percent` numbers become shares.
    """
    if not re.fullmatch(r"-?\d+(\.\d+)?", printed):
        raise ValueError(
            f"{id}: {printed!r} is not a printed number; write it as in the table, such as '0.89' or '-12'"
        )
    exact = kind in ("count", "setting")
    places = max(decimals, len(printed.partition(".")[2])) + (2 if percent else 0)
    value = Decimal(printed) / (100 if percent else 1)
    half_width = Decimal(0) if exact else Decimal(5).scaleb(-places - 1)
    return PublishedNumber(id, float(value), float(half_width), kind, source, printed, n, draws, model)


@cache
def numbers() -> Mapping[str, PublishedNumber]:
    """Every number of the paper by id; withdrawn figures are not among them."""
    by_id: dict[str, PublishedNumber] = {}
    for entry in (*_table_numbers(), *_sentence_numbers()):
        if entry.id in by_id:
            raise ValueError(f"published.toml gives {entry.id!r} twice; rename one of the two")
        by_id[entry.id] = entry
    return by_id


def number(id: str) -> PublishedNumber:
    """One number, named `<quantity>@<alias>`, or `<quantity>` where it belongs to no single model."""
    by_id = numbers()
    if id in by_id:
        return by_id[id]
    if id in withdrawn():
        raise KeyError(f"{id!r} is commented out in the paper's source: withdrawn, so no claim may rest on it")
    close = get_close_matches(id, by_id, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "published.numbers() lists the ids"
    raise KeyError(f"the paper prints no number {id!r}; {hint}")


@cache
def withdrawn() -> Mapping[str, PublishedNumber]:
    """Figures in commented-out lines of the paper's source: on record, so that none becomes a claim."""
    by_id: dict[str, PublishedNumber] = {}
    for topic, groups in _toml()["withdrawn"].items():
        for name, entries in groups.items():
            for entry, value in entries.items():
                id = f"{topic}.{entry}@{name}" if name in ALIASES else f"{topic}.{name}.{entry}"
                figure = printed_number(id, str(value), kind="setting", source="commented-out LaTeX")
                by_id[id] = replace(figure, model=name if name in ALIASES else None)
    return by_id


@cache
def tolerance(kind: Quantity) -> Tolerance:
    """The declared margin of a kind of quantity and the reason for it."""
    kinds = _toml()["kinds"]
    if kind not in kinds:
        raise KeyError(f"no margin is declared for the kind {kind!r}; published.toml declares {', '.join(kinds)}")
    entry = kinds[kind]
    margin = entry.get("margin")
    return Tolerance(
        kind,
        entry["reason"],
        None if margin is None else float(margin),
        float(entry.get("relative", 0)),
        entry.get("proportion", False),
    )


@cache
def checkpoint(alias: str) -> Checkpoint:
    """The checkpoint behind one of the paper's four models."""
    return Checkpoint(alias=_checked_alias(alias), **_toml()["models"][alias])


@cache
def circuit(alias: str) -> tuple[CircuitHead, ...]:
    """The published circuit of a model, group by group in the printed order, as (group, layer, head, role).

    The paper prints its pairs as (head, layer); here the layer comes first, as everywhere in this project. A head in
    two printed groups appears twice, since it acts at two positions: lengths count head-position pairs.
    """
    groups = _toml()["heads"][_checked_alias(alias)]
    return tuple(
        CircuitHead(group, layer, head, ROLE_OF_GROUP[group]) for group in GROUPS for layer, head in groups[group]
    )


def share_kept(alias: str) -> PublishedNumber:
    """The share of head-position pairs kept after pruning, from the two counts of the table: one selection, exact."""
    kept, total = number(f"heads.kept@{_checked_alias(alias)}"), number(f"heads.total@{alias}")
    printed = f"{kept.printed} / {total.printed}"
    return PublishedNumber(
        f"heads.share_kept@{alias}", kept.value / total.value, 0.0, "share", kept.source, printed, draws=1, model=alias
    )


@cache
def contradictions() -> tuple[Contradiction, ...]:
    """The sentences known to disagree with the paper's own tables."""
    return tuple(Contradiction(**entry) for entry in _toml()["text_against_table"])


def _checked_alias(alias: str) -> Alias:
    for valid in ALIASES:
        if alias == valid:
            return valid
    raise KeyError(f"{alias!r} is not a model of the paper; its aliases are {', '.join(ALIASES)}")


@cache
def _toml() -> dict[str, Any]:
    text = files("rebinding.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Decimal)  # a Decimal keeps the number of printed places


def _table_numbers() -> Iterator[PublishedNumber]:
    for label, table in _toml()["tables"].items():
        rows = list(_rows(table))
        for place, column in enumerate(table["columns"]):
            decimals = max(len(str(cells[place]).partition(".")[2]) for _, _, cells in rows)
            for model, row, cells in rows:
                yield printed_number(
                    f"{column['id'].format(row=row)}@{model}",
                    str(cells[place]),
                    kind=column["kind"],
                    source=label,
                    n=None if column["kind"] == "count" else table.get("row_n", {}).get(row, table.get("n")),
                    draws=column.get("draws"),
                    model=model,
                    decimals=decimals,
                )


def _rows(table: dict[str, Any]) -> Iterator[tuple[str, str, list[Decimal | int]]]:
    """(model, condition, cells) of a table; the condition is empty where a model has a single row."""
    for model, content in table["rows"].items():
        conditions = content.items() if isinstance(content, dict) else [("", content)]
        for row, cells in conditions:
            if len(cells) != len(table["columns"]):
                raise ValueError(f"published.toml, {model} {row}: {len(cells)} cells, {len(table['columns'])} columns")
            yield model, row, cells


def _sentence_numbers() -> Iterator[PublishedNumber]:
    for entry in _toml()["sentences"]:
        fields = dict(entry)
        _, _, model = fields["id"].partition("@")
        yield printed_number(fields.pop("id"), str(fields.pop("value")), model=model or None, **fields)
