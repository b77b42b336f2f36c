"""A model's verdicts at a glance: a letter for every row, section by section, in the paper's order.

A column is a sentence: above as published, below under the controlled procedure. What was not judged is an empty place,
so that nothing that is missing looks like something that was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rebinding.report.outline import SECTIONS, Section, section_of
from rebinding.report.parts import in_order
from rebinding.verdicts.judgement import Judgement


@dataclass(frozen=True)
class Column:
    """A sentence with what was found under either procedure."""

    sentence: str
    published: Judgement | None
    controlled: Judgement | None

    @property
    def both(self) -> tuple[Judgement | None, Judgement | None]:
        """From top to bottom."""
        return self.published, self.controlled


@dataclass(frozen=True)
class Line:
    """The sentences of a section."""

    section: Section
    columns: tuple[Column, ...]


def matrix(claims: Sequence[Judgement]) -> tuple[Line, ...]:
    """The rows of one model; a section of which nothing was judged has no line."""
    found: dict[str, dict[str, dict[bool, Judgement]]] = {one.key: {} for one in SECTIONS}
    for one in in_order(claims):
        sentence = one.sentence or one.id
        below = one.id != sentence or one.procedure == "controlled"  # some sentences have a controlled row alone
        found[section_of(one.id)].setdefault(sentence, {})[below] = one
    return tuple(
        Line(section, tuple(Column(name, rows.get(False), rows.get(True)) for name, rows in found[section.key].items()))
        for section in SECTIONS
        if found[section.key]
    )
