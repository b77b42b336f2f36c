"""What the pages show is there: links lead somewhere, Python runs, commands are commands."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rebinding.verbs.verbs import VERBS

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "rebinding", "benchmarks", ".github")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(?:\$ |    )python -m rebinding (.+?)(?:\s+#.*)?$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = sorted({found for page in PAGES for found in COMMAND.findall(page.read_text())})
RUN = ("README.md", "docs/tracing.md", "rebinding/planted/README.md")
"""The walk and the examples of CONTRIBUTING are run by tests of their own."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Into the project; addresses outside are not asked."""
    found = [target for target in LINK.findall(page.read_text()) if "://" not in target and target[:7] != "mailto:"]
    assert [target for target in found if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each verb's own parser takes what the page says; nothing is run."""
    verb, *rest = shlex.split(command.rstrip("\\"))
    module = importlib.import_module(VERBS[verb].module)
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.arguments(parser)
    parser.parse_args(rest)


@pytest.mark.parametrize("page", RUN)
def test_python_runs(page: str, tmp_path: Path) -> None:
    """All blocks of a page, one after the other, as a stranger would paste them."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    given = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
