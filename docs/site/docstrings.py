"""Docstrings are written for people who read the code: single backticks, Markdown's tables. Here for docutils."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def as_restructured(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Markdown's tables become tables; the rest is read as it stands (`default_role` makes code of backticks)."""
    lines[:] = with_tables(lines)


def with_tables(lines: list[str]) -> list[str]:
    """The lines with every run of `| a | b |` as a list-table."""
    output: list[str] = []
    table: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            output += ["", *as_table(table), ""]
            table = []
        output.append(line)
    return output[:-1]


def as_table(lines: list[str]) -> list[str]:
    """The rule below the header says that there is one; it is no row."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    has_header = len(rows) > 1 and all(set(cell) <= set("-: ") for cell in rows[1])
    output = [".. list-table::", f"   :header-rows: {int(has_header)}", ""]
    for number, row in enumerate(rows):
        if not (has_header and number == 1):
            output += [f"   {'* -' if not place else '  -'} {cell}" for place, cell in enumerate(row)]
    return output
