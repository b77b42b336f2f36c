"""Run the claims as a user would, and read the files they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rebinding.evidence.store import Store
from rebinding.learned.shelf import parse

ROOT = Path(__file__).parents[1]
MODEL = "planted:pointer@llama"
ON_RAY = ("--engine", "ray", "--workers", "2")
FEW_ROWS = ("--samples", "12", "-k", "D_q_C or recovers_accuracy or object_direct or b_moves_pointer or table.q.dR")
"""Claims of every section: discovery in stages, ablation, tracing with three and with five boxes, roles, binding."""
LEARNED = "learned:smollm2"
MODEL_ROWS = (
    "--samples",
    "6",
    "--dtype",
    "float32",
    "-k",
    "full_model_accuracy or object_direct or a_attends_to_object",
)
"""Claims for which a model of thirty layers is traced and searched, in minutes."""
HEAD = "= verdicts ="


def learned() -> list[str]:
    """The model that learned the task, where it is said where its base is; a wrong place is an error of the run."""
    return [LEARNED] if os.environ.get(parse(LEARNED).base.variable) else []


def command(store: Path, *options: str, model: str = MODEL) -> list[str]:
    """`pytest claims` on one model."""
    arguments = ("--model", model, "--store", str(store), *options)
    return [sys.executable, "-m", "pytest", "claims", *arguments, "-q", "-p", "no:cacheprovider"]


@contextmanager
def start_run(store: Path, *options: str, model: str = MODEL) -> Iterator[subprocess.Popen[str]]:
    """A run in the background, one thread a process; it and all that it began ends with the block."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments, pipe = command(store, *options, model=model), subprocess.PIPE
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            for child in family(process.pid):
                kill(child)


def table(output: str) -> list[str]:
    """The verdicts as they are printed: every claim with its numbers. So few prompts do not decide every claim as
    expected, so a run to the end may have failed."""
    _, heading, table = output.partition(HEAD)
    assert heading, output[-3000:]
    return [line for line in table.splitlines() if line.startswith("  ")]


def run(store: Path, *options: str, model: str = MODEL) -> list[str]:
    """A run to its end, and its table."""
    with start_run(store, *options, model=model) as process:
        output, _ = process.communicate(timeout=3600)
    return table(output)


def shards(store: Path) -> dict[str, bytes]:
    """All evidence and all tensors, as they lie there. (What is on record of plants is no evidence.)"""
    kinds = (".parquet", ".safetensors")
    return {
        f"{entry.experiment}/{entry.path.name}": entry.path.read_bytes()
        for entry in Store(store).entries()
        if entry.path.suffix in kinds
    }


def family(pid: int) -> list[psutil.Process]:
    """A process, and all that it has begun."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def workers(pid: int) -> list[psutil.Process]:
    """The actors of a driver, as Ray names their processes."""
    return [process for process in family(pid) if _name(process).startswith("ray::Actor")]


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill(process: psutil.Process) -> bool:
    """As `kill -9`; whether there was anybody to kill."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
