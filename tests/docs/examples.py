"""The Python on a page: blocks that are run one after the other, and what the page says that each prints.

`python -m tests.docs.examples PAGE ...` runs the blocks of pages and writes what they print under them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.handlers import check_errors_shown, run_with_handlers

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""Code, and a block without a language that follows it at once."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def examples(text: str) -> list[tuple[str, str]]:
    """Every block of Python with what is shown under it (nothing, if nothing is)."""
    return [(match[1], match[2] or "") for match in BLOCK.finditer(text)]


def printed(text: str) -> Iterator[str]:
    """What each block prints, run after those before it; errors that a block handles are raised and printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (code, _) in enumerate(examples(text), start=1):
        output, filename = io.StringIO(), f"<block {number}>"
        with redirect_stdout(output):
            errors = run_with_handlers(ast.parse(code), names, filename)
        check_errors_shown(errors, output.getvalue(), filename)
        yield output.getvalue()


def check_words(text: str, expected: str, share: float, last_digit: float) -> None:
    """The same text, spaces apart, and the same numbers within what rounding may do."""
    assert [NUMBER.sub("#", line).split() for line in text.splitlines()] == [
        NUMBER.sub("#", line).split() for line in expected.splitlines()
    ]
    pairs = zip(NUMBER.findall(text), NUMBER.findall(expected), strict=True)
    differences = [
        (number, printed)
        for number, printed in pairs
        if abs(float(number) - float(printed)) > bound(printed, share, last_digit)
    ]
    assert not differences, f"{differences[:5]}: ours, and what is shown"


def bound(printed: str, share: float, last_digit: float) -> float:
    """By how much a number may differ from the one that is shown."""
    return max(share * abs(float(printed)), last_digit)


def write(page: Path) -> None:
    """Put what the blocks print under those that have something under them."""
    text = page.read_text("utf-8")
    blocks = printed(text)

    def filled(block: re.Match[str]) -> str:
        output = next(blocks)
        return block[0] if block[2] is None else f"```python\n{block[1]}```\n\n```\n{output}```\n"

    page.write_text(BLOCK.sub(filled, text), "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
