"""Every option has a help text that names its default, and the page of options is up to date."""

from __future__ import annotations

import argparse
import re

import pytest

from tests.docs.options_page import PAGE, ROOT, VARIABLES, options, page, parsers

VARIABLE = re.compile(r"\bREBINDING_[A-Z0-9_]+\b")

OPTIONS = [
    pytest.param(action, id=f"{parser.prog} {action.dest}")
    for parser in parsers()
    for _, actions in options(parser)
    for action in actions
]


def test_page_is_up_to_date() -> None:
    """`python -m tests.docs.options_page` writes it again."""
    assert PAGE.read_text("utf-8") == page()


def test_the_variables_of_this_project_are_on_the_page_and_read_somewhere() -> None:
    folders = ("rebinding", "fixtures", "browser", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.name != "options_page.py"]
    named = {name for path in (*files, ROOT / "tox.ini") for name in VARIABLE.findall(path.read_text("utf-8"))}
    assert named == {name for name in VARIABLES if name.startswith("REBINDING")}


@pytest.mark.parametrize("action", OPTIONS)
def test_help_text_names_the_default(action: argparse.Action) -> None:
    """Flags and required options have no default to name."""
    assert action.help
    if action.nargs == 0 or action.required:
        return
    assert "default" in action.help
    if action.default not in (None, []):
        shown = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
        assert f"default {shown}" in action.help
