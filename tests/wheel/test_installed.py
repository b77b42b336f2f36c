"""A wheel and an sdist are built, checked, and used outside the repository, as a user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.examples import examples

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
CLEAN = ("PYTHONPATH", "PYTEST_ADDOPTS", "REBINDING_STORE")
NAMES = ("claims", "fixtures", "tests", "rebinding.suite")
LARGEST = 30e6
"""Bytes of a wheel. The adapters of learned models are 13 million."""

pytestmark = pytest.mark.slow


def call(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command in a folder, without this repository on the path; its output."""
    environment = {name: value for name, value in os.environ.items() if name not in CLEAN}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the tracked files."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "source"
    copy.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", copy], folder)
    call([sys.executable, "-m", "twine", "check", "--strict", *sorted((folder / "dist").iterdir())], folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment that has the wheel, its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    bin_folder = folder / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = built.glob("*.whl")
    call([bin_folder / "python", "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, wheel], folder)
    return bin_folder


def test_wheel_holds_claims_under_its_own_name(built: Path, environment: Path) -> None:
    """Nothing named claims, fixtures or tests lands beside the package."""
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert max(wheel.stat().st_size, sdist.stat().st_size) < LARGEST
    code = f"import importlib.util; print([importlib.util.find_spec(name) for name in {NAMES}])"
    printed = call([environment / "python", "-c", code], environment)
    assert printed.startswith("[None, None, None, ModuleSpec")


def test_judge_in_an_empty_folder(environment: Path, tmp_path: Path) -> None:
    """Five headline lines, exit code 0, and a report that the next commands read. A pytest.ini of the user's has no
    effect."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "claims.py").write_text("raise RuntimeError('the wrong module')\n")
    command = environment / "rebinding"
    printed = call([command, "judge", "planted:pointer", "--report", "report"], tmp_path)
    lines = [line for line in printed.splitlines() if line[:3] in ("  1", "  2", "  3", "  4", "  5")]
    assert len(lines) == 5, printed
    assert "REPLICATED" in lines[0]
    assert "refuted" in lines[3]
    assert call([command, "compare", "report", "report"], tmp_path).startswith(
        "13 rows in both: 0 with another verdict"
    )
    content = json.loads((tmp_path / "report" / "claims.json").read_text("utf-8"))
    words = content["claims"][0]["command"].split()
    assert words[:4] == ["rebinding", "judge", "planted:pointer@llama", "--test"]
    again = json.loads(call([command, *words[1:3], "--test", " ".join(words[4:]).strip("'"), "--json"], tmp_path))
    assert [row["id"] for row in again["claims"]] == [content["claims"][0]["id"]]
    verdicts = (
        "import rebinding; v = rebinding.judge('planted:pointer'); print(v.as_expected, len(v.claims), len(v.headline))"
    )
    assert call([environment / "python", "-c", verdicts], tmp_path).strip() == "True 13 1"


def test_claims_of_ones_own(environment: Path, tmp_path: Path) -> None:
    """A new suite is judged as it is, with nothing of this repository near; tests without rows load nothing large."""
    call([environment / "rebinding", "new-suite", "mine"], tmp_path)
    options = ("--model", "planted:pointer", "--report", "report", "-q")
    printed = call([environment / "pytest", "mine", *options], tmp_path)
    (line,) = (line for line in printed.splitlines() if "mine.head" in line)
    assert line.split()[-1] == "REPLICATED"
    assert (tmp_path / "report" / "index.html").is_file()
    (tmp_path / "test_plain.py").write_text("import sys\n\ndef test():\n    assert 'torch' not in sys.modules\n")
    assert "1 passed" in call([environment / "pytest", "test_plain.py", "-q"], tmp_path)


def test_example_of_the_readme(environment: Path, tmp_path: Path) -> None:
    ((code, expected),) = examples((ROOT / "README.md").read_text("utf-8"))
    (tmp_path / "example.py").write_text(code, "utf-8")
    assert call([environment / "python", "example.py"], tmp_path).split() == expected.split()


def test_public_names_are_typed(environment: Path, tmp_path: Path) -> None:
    """`mypy --strict` from outside, against the installed package."""
    shutil.copy(Path(__file__).with_name("typed_use.py"), tmp_path / "use.py")
    options = ("--strict", "--python-executable", environment / "python", "--cache-dir", ".mypy")
    call([sys.executable, "-m", "mypy", *options, "use.py"], tmp_path)
