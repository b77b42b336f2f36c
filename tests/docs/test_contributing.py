"""CONTRIBUTING shows how an experiment is added, up to the page, and a row: here it is done, in a copy of the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.bench import copy_of_the_tree

ROOT = Path(__file__).parents[2]
REGISTRIES = 2
IMPORTS = "from rebinding.experiments.looks.kinds import LOOKS\nfrom rebinding.report.figures.looks import looks\n"


def blocks() -> dict[str, str]:
    """The files in the page, by what their first line says."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return dict(re.findall(r"```(?:python|toml)\n# ([^\n]+)\n(.*?)```", page, flags=re.DOTALL))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the experiment in it."""
    there = copy_of_the_tree(tmp_path_factory.mktemp("contributed"))
    for place, text in blocks().items():
        if " " not in place:
            assert not (there / place).exists(), "an experiment or a row is files of its own"
            (there / place).parent.mkdir(exist_ok=True)
            (there / place).write_text(text)
        else:
            path = there / place.rpartition(" in ")[2]
            plates = path.read_text()
            assert plates.rstrip().endswith(")")
            head, between, rest = plates.partition("from rebinding.report.folder")
            path.write_text(head + IMPORTS + between + rest.rstrip().removesuffix(")") + text + ")\n")
    shutil.copytree(ROOT / "tests" / "rooms", there / "tests" / "rooms")
    return there


def test_it_touches_its_own_files_and_at_most_two_registries() -> None:
    assert sum(" " in place for place in blocks()) <= REGISTRIES
    assert len(blocks()) == 9 + 3


def judge(tree: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run(tree, "claims/test_looks.py", "--model", "planted:pointer", "--samples", "12", *more)


def run(tree: Path, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *given, "--no-store", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_the_experiment_comes_out_on_the_page(tree: Path) -> None:
    done = judge(tree, "--report", "out")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    (claim,) = json.loads((tree / "out" / "claims.json").read_text("utf-8"))["claims"]
    assert (claim["verdict"], claim["expected"], claim["circuit"]) == ("REPLICATED", None, "declared")
    assert claim["measured"] > 0.9
    page = (tree / "out" / "index.html").read_text("utf-8")
    assert "What group A looks at" in page
    assert "attention on the answer" in page


def test_it_keeps_to_the_rooms(tree: Path) -> None:
    command = [sys.executable, "-m", "pytest", "tests/rooms", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_it_notices_the_wrong_token(tree: Path) -> None:
    """The same heads hardly look at the object that the asked box held."""
    path = tree / "rebinding" / "study" / "looks.py"
    right = path.read_text()
    path.write_text(right.replace("context_partner_object", "context_asked_object"))
    done = judge(tree)
    path.write_text(right)
    assert "NOT REPLICATED" in done.stdout


def test_the_row_comes_out_as_its_truth_says(tree: Path) -> None:
    models = ["--model", "planted:lexical", "--model", "planted:pointer"]
    done = run(tree, "claims/test_stop.py", *models, "--report", "row")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = {one["model"]: one for one in json.loads((tree / "row" / "claims.json").read_text("utf-8"))["claims"]}
    assert {name: (one["verdict"], one["expected"]) for name, one in found.items()} == {
        "planted:lexical@llama": ("REPLICATED", "REPLICATED"),
        "planted:pointer@llama": ("INVALID", "INVALID (group_present)"),
    }


def test_the_row_notices_another_group(tree: Path) -> None:
    """Without heads that are not there nothing is lost."""
    path = tree / "claims" / "test_stop.py"
    right = path.read_text()
    path.write_text(right.replace('without_group(evidence, "P"', 'without_group(evidence, "Q"'))
    done = run(tree, "claims/test_stop.py", "--model", "planted:lexical")
    path.write_text(right)
    assert done.returncode == 1
    assert "NOT REPLICATED" in done.stdout
