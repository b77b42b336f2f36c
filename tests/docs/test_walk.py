"""The page that follows one pair says what happens: its code prints its output, its files exist, none comes twice."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from tests.docs.examples import check_words

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/walk.md").read_text("utf-8")
SHARE, LAST_DIGIT = 1e-2, 2e-3
"""Numbers are printed with three decimals; what rounds otherwise is far within this, another mechanism is not."""
MOST_HOPS, MOST_FILES = 7, 79
"""75 files until claims were judged from any folder (`rebinding/testing`, and `fixtures/paper.py` for what only the
paper's claims have), dtypes and versions became files of their own, and verdicts stated their quantities."""
CLAIM, MODEL = "roles.b_moves_pointer", "planted:pointer"
FILE = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml))`")


@cache
def blocks() -> tuple[str, str]:
    """The code, and what the page says that it prints."""
    code, output = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return code, output


def hops() -> list[tuple[str, str]]:
    """Every hop's file, and what is entered there."""
    matches = re.findall(r"^## \d+\. .+\n\n`([^`]+)`, `([^`]+)`$", PAGE, flags=re.MULTILINE)
    assert len(matches) == len(re.findall(r"^## \d+\. ", PAGE, flags=re.MULTILINE))
    return matches


def test_the_code_prints_what_the_page_says() -> None:
    code, output = blocks()
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "docs/walk.md", "exec"), {})
    check_words(printed.getvalue(), output, SHARE, LAST_DIGIT)


def test_the_code_fits_a_screen() -> None:
    assert len(blocks()[0].splitlines()) <= 25


def test_every_file_is_there() -> None:
    paths = FILE.findall(PAGE)
    assert len(paths) > MOST_HOPS
    assert not [path for path in paths if not (ROOT / path).is_file()]


def test_there_are_few_hops_and_no_file_comes_twice() -> None:
    files = [file for file, _ in hops()]
    assert 1 < len(files) <= MOST_HOPS
    assert len(set(files)) == len(files)


@pytest.fixture(scope="module")
def path() -> dict[str, list[str]]:
    """The files that the claim of the page passes through in a process of its own, with the functions called there."""
    imports = "import json; from tests.tree.path_of_a_claim import find_files"
    code = f"{imports}; print(json.dumps(find_files({CLAIM!r}, {MODEL!r})))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    files: dict[str, list[str]] = json.loads(result.stdout.splitlines()[-1])
    return files


@pytest.mark.slow
def test_the_claim_passes_through_every_hop(path: dict[str, list[str]]) -> None:
    assert CLAIM in PAGE
    assert [hop for hop in hops() if hop[1] not in path.get(hop[0], ())] == []


@pytest.mark.slow
def test_the_path_of_a_claim_does_not_grow(path: dict[str, list[str]]) -> None:
    assert 50 < len(path) <= MOST_FILES


def test_hop_target_is_in_its_file() -> None:
    for file, entered in hops():
        text = (ROOT / file).read_text("utf-8")
        for name in entered.split("."):
            assert re.search(rf"^\s*(?:def|class) {name}\b|^{name} = ", text, flags=re.MULTILINE), (file, name)
