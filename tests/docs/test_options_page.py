"""Every option has a help text that names its default, and the page of options is up to date."""

from __future__ import annotations

import argparse

import pytest

from tests.docs.options_page import PAGE, options, page, parsers

OPTIONS = [
    pytest.param(action, id=f"{parser.prog} {action.dest}")
    for parser in parsers()
    for _, actions in options(parser)
    for action in actions
]


def test_page_is_up_to_date() -> None:
    """`python -m tests.docs.options_page` writes it again."""
    assert PAGE.read_text("utf-8") == page()


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
