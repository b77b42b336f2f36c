"""Differences between the text of section 5 and the released code: candidates that change one convention each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from rebinding.experiments.binding.conditions import POOLED_KEYS, QK_SOURCE, Condition
from rebinding.experiments.binding.row_conditions import RowConditions
from rebinding.paper.procedure import BindingConventions

SOURCE: RowConditions = (("qk", QK_SOURCE.name),)
POOLED: RowConditions = tuple((condition.name.removesuffix("_pooled"), condition.name) for condition in POOLED_KEYS)
CHOICES: Mapping[str, tuple[str, RowConditions]] = MappingProxyType(
    {
        "exchanged": ("Q+K with the keys of both slots", ()),
        "source": ("Q+K with the keys of slot i alone", SOURCE),
        "shifted": ("key directions of the shifted kind", ()),
        "both": ("key directions of both kinds", POOLED),
    }
)
"""Every choice of a convention: its name in the reason of a verdict, and the conditions that are run."""
RELEASED, BY_PROCEDURE = "as released", "as the procedure says"
PRINTED_ROW: Mapping[str, str] = MappingProxyType({condition: row for row, condition in (*SOURCE, *POOLED)})
"""The printed row that a condition of the text may stand for."""


def conditions_of_text(conventions: BindingConventions) -> tuple[Condition, ...]:
    """The conditions to run in addition to those of the table."""
    source = (QK_SOURCE,) if "source" in conventions.qk_keys else ()
    return (*source, *(POOLED_KEYS if "both" in conventions.key_means else ()))


def candidates(conventions: BindingConventions, rows: Collection[str]) -> Mapping[str, RowConditions]:
    """The candidates for these rows of the table: the first choice of every convention, and each other choice alone. A
    convention that is not about these rows adds no candidate."""
    choices = tuple(options for about, options in _choices(conventions) if about & set(rows))
    first = sum((CHOICES[options[0]][1] for options in choices), start=())
    result = {BY_PROCEDURE if first else RELEASED: first}
    for place, options in enumerate(choices):
        other_choices = (*choices[:place], *choices[place + 1 :])
        rest: RowConditions = sum((CHOICES[other[0]][1] for other in other_choices), start=())
        result |= {
            name: (*rest, *row_conditions) for name, row_conditions in (CHOICES[option] for option in options[1:])
        }
    return result


def _choices(conventions: BindingConventions) -> Iterator[tuple[set[str], tuple[str, ...]]]:
    """The rows that a convention is about, and its choices."""
    yield {row for row, _ in SOURCE}, conventions.qk_keys
    yield {row for row, _ in POOLED}, conventions.key_means
