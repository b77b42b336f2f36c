"""Run by tests: load each hostile model folder in its own fork with little time and memory.

    python -m tests.oracles.faults.hostile_loads FOLDER [NAME ...]

All of them, or those named. The outcome of each is printed as JSON. Whatever runs code of the folder leaves a file, the
canary.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebinding.models import load
from rebinding.task.chat import limit
from tests.oracles.faults.hostile_models import HOSTILE_MODELS, specimen

SECONDS = 20
"""Of the processor, after which the kernel ends a process."""


def outcome(folder: Path) -> dict[str, Any]:
    """What becomes of loading a folder, and of putting a prompt into its chat."""
    try:
        load(str(folder)).encoder()
    except Exception as error:
        return {"error": type(error).__name__, "module": type(error).__module__, "says": str(error)}
    return {"error": None, "says": ""}


def load_in_child(folder: Path) -> dict[str, Any]:
    """The same in a process that the kernel ends where it takes too much."""
    out, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        limit(SECONDS)
        with os.fdopen(write_end, "w") as file:
            json.dump(outcome(folder), file)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(out) as file:
        text = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "error": "", "says": "", **(json.loads(text) if text else {})}


def main(root: Path, names: Sequence[str]) -> None:
    model, canary = specimen(root / "whole"), root / "canary"
    outcomes = {"as it is": load_in_child(model)}
    for name in names or HOSTILE_MODELS:
        folder = root / "model"
        shutil.copytree(model, folder)
        HOSTILE_MODELS[name].harm(folder, canary)
        outcomes[name] = {**load_in_child(folder), "ran": canary.exists()}
        shutil.rmtree(folder)
        canary.unlink(missing_ok=True)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(Path(sys.argv[1]), sys.argv[2:])
