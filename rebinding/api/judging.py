"""Judge models: run the paper's claims in a pytest process of its own, and read what it writes.

The claims are tests. They lie beside this package in a clone, and inside it in an installed wheel (`suite/`); the
package itself imports neither them nor pytest.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rebinding.models.errors import ModelError
from rebinding.models.loaded_model import fingerprint
from rebinding.models.names import origin

if TYPE_CHECKING:
    from rebinding.api.model import Model

PACKAGE = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_name("judge.ini")
FOR_OTHER_RUNS = "PYTEST_ADDOPTS"
"""Options that the environment holds for the caller's own tests; their plugins and conftest.py are not there when the
claims are judged."""
INSTALLED = "REBINDING_JUDGE"
"""The command, in the environment of the process: its messages and reports name it, and not pytest."""
FINISHED = (0, 1)
"""Exit codes of pytest after which there are verdicts: all as expected, or some not."""


class JudgeError(ValueError):
    """No verdicts: the claims could not be run."""


@dataclass(frozen=True, repr=False)
class Verdicts:
    """The verdicts of a run, as in its `claims.json` (docs/report.md describes every field). In a shell or a notebook
    they show as the table of the headline claims.

    `headline` has the paper's five headline claims by model, `claims` every row that was judged. `as_expected` is
    whether no row differs from the verdict that is known beforehand (planted models) or is invalid (any other model).
    """

    models: tuple[str, ...]
    headline: Mapping[str, tuple[Mapping[str, Any], ...]]
    claims: tuple[Mapping[str, Any], ...]
    as_expected: bool

    @property
    def table(self) -> pd.DataFrame:
        """The headline claims: a row for each model and claim."""
        columns = ("model", "number", "title", "published", "controlled", "standing")
        rows = [{"model": model, **claim} for model, claims in self.headline.items() for claim in claims]
        return pd.DataFrame([{name: row[name] or "" for name in columns} for row in rows], columns=list(columns))

    def __repr__(self) -> str:
        end = "as expected" if self.as_expected else "not all as expected"
        return f"{self.table.to_string(index=False)}\n{len(self.claims)} rows, {end}"

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))


def judge(
    *models: str | Model,
    every_row: bool = False,
    report: Path | str | None = None,
    options: Sequence[str] = (),
    quiet: bool = True,
) -> Verdicts:
    """Judge models by the paper's claims: the headline rows, or every row.

    Models are named as in `load`; the process loads them again by name. A `Model` is judged in its dtype, and refused
    if what its name stands for has another fingerprint: if its weights were changed, or it is of another revision.
    `report` is a folder for the page, `claims.json` and the evidence. `options` are those of
    `pytest claims`, such as `["--samples", "24", "--device", "cpu"]`. Without `quiet` the output of pytest is shown.
    Finished evidence is stored, so the same call goes on where an interrupted one stopped.
    """
    names = [model if isinstance(model, str) else model.name for model in models]
    options = [*_announce([model for model in models if not isinstance(model, str)], options), *options]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report") if report is None else Path(report)
        verdicts, earlier = out / "claims.json", time_of(out / "claims.json")
        code, text = run_claims(names, [*options, "--report", str(out)], every_row=every_row, capture=quiet)
        check_finished(code, text)
        check_written(verdicts, earlier, text)
        return read_verdicts(verdicts, as_expected=code == 0)


def time_of(path: Path) -> int | None:
    """When a file was written; None if there is none."""
    return path.stat().st_mtime_ns if path.is_file() else None


def _announce(models: Sequence[Model], options: Sequence[str]) -> list[str]:
    """The options that hold the process to models in memory: their dtype, unless it is given, and fingerprints."""
    for model in models:
        if model.loaded.in_memory:
            _check_name(model.name)
    announced = [f"--fingerprint={model.name}={fingerprint(model.loaded.model, model.tokenizer)}" for model in models]
    dtypes = {model.loaded.dtype for model in models}
    if len(dtypes) > 1:
        raise ValueError(f"models of several dtypes ({', '.join(sorted(dtypes))}); judge those of each in a call")
    is_given = any(option.partition("=")[0] == "--dtype" for option in options)
    return announced if is_given or not dtypes else [*announced, f"--dtype={dtypes.pop()}"]


def _check_name(name: str) -> None:
    """Refuse a wrapped model whose name says nothing to the process that judges."""
    try:
        origin(name)
    except ModelError as error:
        raise JudgeError(
            f"{name} cannot be loaded by name in the process that judges: save it and its tokenizer with"
            " save_pretrained(FOLDER) and judge FOLDER, or wrap it with name= the folder or Hub id that it came from"
        ) from error


def read_verdicts(path: Path, *, as_expected: bool) -> Verdicts:
    """The verdicts in a `claims.json`."""
    content = json.loads(path.read_text("utf-8"))
    headline = {entry["model"]: tuple(entry["claims"]) for entry in content["headline"]}
    names = tuple(dict.fromkeys(row["model"] for row in content["claims"]))
    return Verdicts(names, headline, tuple(content["claims"]), as_expected)


def run_claims(
    models: Sequence[str],
    options: Sequence[str],
    *,
    every_row: bool,
    tests: Sequence[str] = (),
    capture: bool = False,
) -> tuple[int, str]:
    """Run the claims (or some `tests` of them) on models, in a process of its own; return its exit code and, if
    captured, its output."""
    if not models:
        raise ValueError("no model given; name one, such as planted:pointer, a folder or a Hub id")
    root = suite_root()
    marks = [] if every_row or tests else ["-m", "headline"]
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(SETTINGS), "--rootdir", str(root)),
        *(str(root / test) for test in tests or ["claims"]),
        *("-p", "rebinding.pytest_plugin", "-p", "no:cacheprovider", "--noconftest", *marks),
        *(word for name in models for word in ("--model", name)),
        *options,
    ]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    chosen = [*(["--all"] if every_row else []), *(word for test in tests for word in ("--test", test))]
    words = shlex.join(["rebinding", "judge", *models, *chosen, *options])
    inherited = {name: value for name, value in os.environ.items() if name != FOR_OTHER_RUNS}
    environment = {**inherited, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", INSTALLED: words}
    done = subprocess.run(
        command, env=environment, text=True, check=False,
        stdout=subprocess.PIPE if capture else None, stderr=subprocess.STDOUT if capture else None,
    )  # fmt: skip
    return done.returncode, done.stdout or ""


def check_finished(code: int, text: str) -> None:
    """Raise if pytest ended without verdicts."""
    if code not in FINISHED:
        raise JudgeError(f"the claims were not judged (pytest ended with {code}):\n{text}".rstrip())


def check_written(path: Path, earlier: int | None, text: str) -> None:
    """Raise if a run wrote no verdicts: its models could not be loaded. `earlier` is the file's time before it."""
    if time_of(path) == earlier:
        raise JudgeError(f"no row was judged:\n{text}".rstrip())


def suite_root() -> Path:
    """The folder that holds `claims` and `fixtures`: inside an installed package, or the root of a clone."""
    for root in (PACKAGE / "suite", PACKAGE.parent):
        if (root / "claims" / "catalogue.py").is_file() and (root / "fixtures" / "plugin.py").is_file():
            return root
    raise JudgeError(
        f"the claims are neither in {PACKAGE} nor beside it; install the package again, or work in a clone of the"
        " repository"
    )
