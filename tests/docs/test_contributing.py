"""CONTRIBUTING shows how an experiment is added, up to the page, and a row: here it is done, in a copy of the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.everyday import sampled
from tests.oracles.mutants.tree_copy import copy_tree

ROOT = Path(__file__).parents[2]
EXPERIMENT, CLAIM = "claims/test_answer_attention.py", "claims/test_stop.py"


def blocks() -> dict[str, str]:
    """The files in the page, by what their first line says."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", page, flags=re.DOTALL))


def entries() -> list[tuple[str, str, str, str]]:
    """The entries in tables that the page adds: file, table, imports, entry."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return re.findall(r"```python\n# (\S+), (\w+)\n((?:from .*\n)*)\n?(    .*\n)```", page)


def add_entry(path: Path, table: str, imports: str, entry: str) -> None:
    text, count = re.subn(rf"^({table}\b.*[({{]\n)", rf"\1{entry}", path.read_text("utf-8"), flags=re.MULTILINE)
    assert count == 1, f"{path.name} has no table {table}"
    path.write_text(text.replace("from rebinding.", f"{imports}from rebinding.", 1))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the experiment and the row in it."""
    tree = copy_tree(tmp_path_factory.mktemp("contributed"))
    for place, text in blocks().items():
        assert not (tree / place).exists(), "nothing that exists is changed"
        (tree / place).parent.mkdir(exist_ok=True)
        (tree / place).write_text(text)
    for place, table, imports, entry in entries():
        add_entry(tree / place, table, imports, entry)
    for folder in ("tree", "experiments", "evidence", "families", "surgery"):
        shutil.copytree(ROOT / "tests" / folder, tree / "tests" / folder)
    for module in ("close.py", "everyday.py"):
        shutil.copy(ROOT / "tests" / module, tree / "tests" / module)
    return tree


def test_an_experiment_is_a_file_a_table_entry_and_a_truth() -> None:
    folders = Counter(str(Path(place).parent) for place in blocks())
    assert folders == {"rebinding/experiments": 1, "claims": 2, "rebinding/planted/truths": 2}
    assert [(place, table) for place, table, _, _ in entries()] == [
        ("rebinding/experiments/table.py", "EXPERIMENTS"),
        ("rebinding/simulate/source.py", "LEFT_OUT"),
    ]


def judge(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(tree, EXPERIMENT, "--model", "planted:pointer", "--samples", "12", *options)


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *arguments, "--no-store", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_experiment_comes_out_on_the_page(tree: Path) -> None:
    result = judge(tree, "--report", "out")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    (claim,) = json.loads((tree / "out" / "claims.json").read_text("utf-8"))["claims"]
    assert (claim["verdict"], claim["expected"], claim["circuit"]) == ("REPLICATED", "REPLICATED", "declared")
    assert claim["measured"] > 0.9
    page = (tree / "out" / "index.html").read_text("utf-8")
    assert "From the readout a head of group A looks at the answer" in page


@pytest.mark.slow
def test_new_experiment_keeps_to_its_package(tree: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/tree",
        "tests/experiments/test_table.py",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.slow
def test_new_claim_notices_the_wrong_token(tree: Path) -> None:
    """The same heads hardly look at the object that the asked box held."""
    path = tree / "rebinding" / "experiments" / "answer_attention.py"
    right = path.read_text()
    path.write_text(right.replace("context_partner_object", "context_asked_object"))
    result = judge(tree)
    path.write_text(right)
    assert "NOT REPLICATED" in result.stdout


@pytest.mark.parametrize("mechanism", sampled(["global", "recency", "lexical"]))
def test_the_experiment_comes_out_as_its_truth_says(tree: Path, mechanism: str) -> None:
    result = run(tree, EXPERIMENT, "--model", f"planted:{mechanism}")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert ("NOT REPLICATED" in result.stdout) == (mechanism == "global")


@pytest.mark.slow
def test_the_row_comes_out_as_its_truth_says(tree: Path) -> None:
    models = ["--model", "planted:lexical", "--model", "planted:pointer"]
    result = run(tree, CLAIM, *models, "--report", "row")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    rows_by_model = {
        row["model"]: row for row in json.loads((tree / "row" / "claims.json").read_text("utf-8"))["claims"]
    }
    assert {name: (row["verdict"], row["expected"]) for name, row in rows_by_model.items()} == {
        "planted:lexical@llama": ("REPLICATED", "REPLICATED"),
        "planted:pointer@llama": ("INVALID", "INVALID (group_present)"),
    }


@pytest.mark.slow
def test_the_row_notices_another_group(tree: Path) -> None:
    """Without heads that are not there nothing is lost."""
    path = tree / "claims" / "test_stop.py"
    right = path.read_text()
    path.write_text(right.replace('without_group(evidence, "P"', 'without_group(evidence, "Q"'))
    result = run(tree, CLAIM, "--model", "planted:lexical")
    path.write_text(right)
    assert result.returncode == 1
    assert "NOT REPLICATED" in result.stdout
