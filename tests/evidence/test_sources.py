"""The hash of an experiment's source covers what it imports, directly or not, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rebinding.evidence.sources import ROOT, code_hash, sources

TRACING = "rebinding.experiments.tracing.maps"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "rebinding", ignore=shutil.ignore_patterns("__pycache__")))


def test_an_edit_changes_the_hash_where_it_matters(copy: Path) -> None:
    before = code_hash(TRACING, root=copy)
    assert before == code_hash(TRACING)
    for edited, counts in (
        ("experiments/tracing/maps.py", True),
        ("surgery/replay.py", True),  # imported by the surgeon, which the package's __init__ imports
        ("surgery/__init__.py", True),
        ("__init__.py", True),
        ("experiments/plots.py", False),
        ("verdicts/effects.py", False),
    ):
        with (copy / edited).open("a") as file:
            file.write("# edited\n")
        after = code_hash(TRACING, root=copy)
        assert (after != before) is counts, edited
        before = after


def test_a_new_import_counts(copy: Path) -> None:
    path = copy / "experiments" / "tokens.py"
    before = set(sources(TRACING, root=copy))
    path.write_text(path.read_text() + "\n\ndef late():\n    from ..verdicts import effects\n")
    assert set(sources(TRACING, root=copy)) > before
    assert "rebinding.verdicts.effects" in sources(TRACING, root=copy)


def test_every_loaded_module_is_a_source() -> None:
    """The modules that Python loads for the experiment are among the sources."""
    script = f"import sys, {TRACING}; print(*[name for name in sys.modules if name.split('.')[0] == 'rebinding'])"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert TRACING in loaded.stdout.split()
    assert set(loaded.stdout.split()) <= set(sources(TRACING))


def test_a_missing_module_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"rebinding\.nowhere"):
        code_hash("rebinding.nowhere")
    assert sources("numpy.random") == {}


SECTIONS = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/measure.py"))
SEARCHES = ("search",)
"""The search tests its own effects while it runs, so its evidence depends on rules."""


@pytest.mark.parametrize("section", SECTIONS)
def test_evidence_does_not_depend_on_rules(section: str) -> None:
    """A new sentence or rule uses the stored evidence."""
    assert {"tracing", "binding", *SEARCHES} < set(SECTIONS)
    modules = [name for name in sources(f"rebinding.experiments.{section}.measure") if "verdicts" in name]
    assert bool(modules) == (section in SEARCHES)
