"""What the build of the site makes of the tree, as far as it can be seen without building: `tox -e docs` builds it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from claims.catalogue import catalogue_of_runs, claims
from tests.docs.notebooks import FOLDER
from tests.docs.test_pages import PAGES, ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))

from catalogue import cells, line, write_catalogue
from docstrings import with_tables
from navigation import LIST, sections
from reference import modules, write_reference

TOP_PAGES = ("README", LIST)
"""The first page carries the navigation, and the list is added to it."""


def test_every_page_is_listed_once() -> None:
    """A page that is listed nowhere, or twice, fails the build; here it is said sooner."""
    listing = [page for _, pages in sections((ROOT / f"{LIST}.md").read_text("utf-8")) for _, page in pages]
    shown_pages = [page.relative_to(ROOT) for page in (*PAGES, *FOLDER.rglob("*.ipynb")) if ".github" not in page.parts]
    expected = {
        str(page.with_suffix("")) for page in shown_pages if "adapters" not in page.parts
    }  # cards of adapters lie there
    assert Counter(listing) == Counter(expected - set(TOP_PAGES))


def test_a_section_is_its_heading_and_the_pages_that_begin_its_lines() -> None:
    text = "# T\n\n## One\n\n* [a](b.md): and [c](d.md)\n2. [e](../f.ipynb)\n\n## Two\n\ntext\n"
    assert list(sections(text)) == [("One", [("a", "docs/b"), ("e", "f")]), ("Two", [])]


def test_the_catalogue_has_every_row(tmp_path: Path) -> None:
    write_catalogue(tmp_path)
    page = (tmp_path / "catalogue.md").read_text("utf-8")
    rows = claims()
    parts = dict(part.split("\n", 1) for part in page.split("\n### ")[1:])
    for row in rows:
        assert parts[row.sentence].count(f"\n{row.statement} *") == 1, row.id
    row_count = page.count("\n| published |") + page.count("\n| controlled |")
    assert f"{row_count} rows" in page
    assert row_count == len(rows) + len(catalogue_of_runs())


def test_a_row_of_the_catalogue_says_what_must_come_out() -> None:
    from rebinding.planted.truth import truth_of

    truths = {name: truth_of(name) for name in ("pointer", "global", "recency", "lexical")}
    (row,) = (row for row in claims() if row.id == "binding.key_dominance")
    *_, pointer, global_, recency, lexical = cells(row, truths)
    assert (pointer, recency, lexical) == ("NOT REPLICATED", "REPLICATED", "NOT REPLICATED")
    assert global_ == "INVALID (group_present)"
    assert line(["a|b", "c"]) == "| a\\|b | c |"


def test_the_reference_has_every_module(tmp_path: Path) -> None:
    write_reference(tmp_path)
    pages = "".join(path.read_text("utf-8") for path in (tmp_path / "reference").glob("*.md"))
    paths = [path for path in (ROOT / "rebinding").rglob("*.py") if path.name != "__main__.py"]
    assert len(paths) > 200
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert sorted(names) == sorted(name for room in modules().values() for name in room)
    assert all(f".. automodule:: {name}\n" in pages for name in names)


@pytest.mark.parametrize(
    ("docstring_lines", "table"),
    [
        (["a", "", "b"], ["a", "", "b"]),
        (
            ["a", "| x | y |", "|---|---|", "| 1 | 2 |"],
            ["a", "", ".. list-table::", "   :header-rows: 1", "", "   * - x", "     - y", "   * - 1", "     - 2", ""],
        ),
        (["| 1 | 2 |", "b"], ["", ".. list-table::", "   :header-rows: 0", "", "   * - 1", "     - 2", "", "b"]),
    ],
)
def test_tables_of_docstrings(docstring_lines: list[str], table: list[str]) -> None:
    assert with_tables(docstring_lines) == table
