"""Run cells of the truth table on a copy of the tree, with or without a mutant."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.oracles.mutants.mutants import Mutant

ROOT = Path(__file__).parents[3]
PARTS = ("rebinding", "claims", "fixtures", "conftest.py", "pytest.ini", "tests/__init__.py", "tests/arithmetic")
Cell = tuple[str, str]


def copy_tree(folder: Path) -> Path:
    """What claims need, apart from the original; `tests/arithmetic` for runs under `--rounding`."""
    (folder / "tests").mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the one place."""
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.right) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.right!r} stands {text.count(mutant.right)} times in {mutant.file}; a mutant"
            " changes one place, so say which"
        )
    path.write_text(text.replace(mutant.right, mutant.wrong))


def run(tree: Path, cells: Sequence[Cell], before: Sequence[str] = ()) -> Mapping[Cell, str | None]:
    """What is wrong with each cell, in a line; None where it came out as planted."""
    claims = [*before, *dict.fromkeys(claim for claim, _ in cells)]
    models = dict.fromkeys(model for _, model in cells)
    model_options = [part for model in models for part in ("--model", model)]
    words = ["-k", " or ".join(claims), "--store", str(tree / "store"), "--junitxml", str(tree / "found.xml")]
    command = [sys.executable, "-m", "pytest", "claims", *model_options, *words, "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if not (tree / "found.xml").is_file():
        raise RuntimeError(f"pytest judged nothing:\n{result.stdout}\n{result.stderr}")
    outcomes = dict(_outcome_of_case(case) for case in ET.parse(tree / "found.xml").iter("testcase"))
    return {(claim, model): outcomes[claim, model] for claim, model in cells}


def _outcome_of_case(case: ET.Element) -> tuple[Cell, str | None]:
    """A cell by the names that the mutants use, and the first line of its failure."""
    model, _, claim = case.attrib["name"].partition("[")[2].removesuffix("]").partition("@llama-")
    wrong = next((child for child in case if child.tag in ("failure", "error")), None)
    return (claim, model), None if wrong is None else _line(wrong)


def _line(wrong: ET.Element) -> str:
    message = (wrong.attrib.get("message") or wrong.text or "failed").splitlines()[0]
    return message.rpartition(": ")[2] if ", expected " in message else message
