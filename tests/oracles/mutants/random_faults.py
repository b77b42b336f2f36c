"""Mutation testing: the share of randomly drawn changes that the tests catch.

    tox -e mutation -- ROOM [--draw N] [--seed N] [--found FILE]

The faults of `mutants.py` were thought up together with the cells that catch them. Here cosmic-ray makes the faults:
another comparison, another sign, a constant off by one, a loop of no turns, a condition turned round. One fault is
drawn for a place in the code, and places are drawn without regard to what they say. A fault is killed if the tests of
its room fail, or else a cell of the truth table does. What ran too long counts as killed, and is counted apart.

Left out are places that no run reads (annotations), and replacements that can only be a type error (a bit shift for a
sum): these would flatter the score.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from rebinding.study.model_spec import planted_models

ROOT = Path(__file__).parents[3]
OPERATORS = {
    "core/AddNot", "core/NumberReplacer", "core/ZeroIterationForLoop", "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak", "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceUnaryOperator_Delete_USub",
    *(f"core/ReplaceBinaryOperator_{operator}" for operator in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Mul", "Mod_Add", "BitOr_BitAnd",
        "BitAnd_BitOr",
    )),
    *(f"core/ReplaceComparisonOperator_{operator}" for operator in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_Gt", "LtE_Lt", "LtE_GtE", "Gt_GtE", "Gt_Lt", "GtE_Gt", "GtE_LtE",
        "Is_IsNot", "IsNot_Is",
    )),
}  # fmt: skip
CELLS_ON = "llama"
MEASURED = ("planted:pointer@llama",)
"""Where evidence must be measured anew for every fault: a minute or two for all rows of one plant."""
BY_HAND = "tests/oracles/by_hand/test_by_hand.py"
BREAKING = "tests/study/test_gates.py"
SLOWER = 5.0
"""How many times as long as without a fault the tests may take before that is held against the fault."""


@dataclass(frozen=True)
class Room:
    """Which code, which tests of it, and whether the cells that are asked after them may use evidence that is stored:
    not where the code in question measures it, or draws the prompts that it is measured on."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    measures: bool = False
    after: tuple[str, ...] = ()
    """Tests that take longer than the cells, and are asked after them."""


ROOMS: Mapping[str, Room] = MappingProxyType(
    {
        "verdicts": Room(("rebinding/verdicts",), ("tests/verdicts",)),
        "claims": Room(
            ("claims",),
            ("tests/paper/test_text_against_tables.py", "tests/claims/test_parts.py", "tests/claims/test_rules.py"),
            after=("tests/oracles/by_hand/test_requests_page.py", BY_HAND),
        ),
        "study": Room(
            ("rebinding/study",), ("tests/study", f"--ignore={BREAKING}"), measures=True,
            after=(BREAKING, BY_HAND),
        ),
        "designs": Room(("rebinding/task",), ("tests/task",), measures=True),
        "summaries": Room(tuple(f"rebinding/experiments/{experiment}/summary.py" for experiment in (
            "binding", "circuit", "paths", "roles", "search", "tracing",
        )), tuple(f"tests/experiments/{experiment}" for experiment in (
            "attention", "binding", "roles", "tracing", "circuit/test_pruning.py", "search/test_summary.py",
        )),
        after=(BY_HAND,)),
        "measuring": Room(tuple(f"rebinding/experiments/{experiment}" for experiment in (
            "ablation.py", "attention.py", "static.py", "unedited.py",
            "binding", "circuit", "paths", "roles", "tracing",
        )), tuple(f"tests/experiments/{experiment}" for experiment in (
            "attention", "binding", "roles", "tracing", "circuit",
        )), measures=True,
        after=(BY_HAND,)),
    }
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Change, test, put back; a line of JSON for each, so that a draw that was cut off goes on."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles.mutants.random_faults", description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--draw", type=int, default=100, metavar="N", help="faults (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--found", type=Path, metavar="FILE", help="lines of JSON; continued if it is there")
    parser.add_argument("--store", type=Path, metavar="DIR", help="evidence that is there already; a copy is taken")
    options = parser.parse_args(arguments)
    store = options.store.absolute() if options.store else None
    results_file = (options.found or Path(f"mutation-{options.room}-{options.seed}.jsonl")).absolute()
    room, known_faults = ROOMS[options.room], {line["fault"] for line in read_results(results_file)}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _copy(Path.cwd())
        if store is not None:
            shutil.copytree(store, "store")
        limit = SLOWER * _baseline(bash(room, room.code[0]))
        faults = sample_faults(room, options.draw, options.seed)
        for fault in tqdm(
            [candidate for candidate in faults if name_of(candidate) not in known_faults], desc=options.room
        ):
            line = {"fault": name_of(fault), **_try_fault(fault, bash(room, str(fault.module_path)), limit)}
            with results_file.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print("\n".join(report(options.room, read_results(results_file))))
    return 0


def sample_faults(room: Room, n: int, seed: int) -> list[Any]:
    """One fault at each of `n` places of the code below this folder, blindly."""
    from cosmic_ray.commands.init import _all_work_items

    files = [path for part in room.code for path in _files(Path(part))]
    unread = {path: find_unread_spans(path) for path in files}
    places: dict[tuple[str, Any], list[Any]] = {}
    for item in _all_work_items(files, {}):
        (fault,) = item.mutations
        if (
            fault.operator_name in OPERATORS
            and not _star(fault)
            and not any(first <= fault.start_pos and fault.end_pos <= last for first, last in unread[fault.module_path])
        ):
            places.setdefault((str(fault.module_path), fault.start_pos), []).append(fault)
    chance = random.Random(seed)
    positions = sorted(places)
    return [chance.choice(places[position]) for position in chance.sample(positions, min(n, len(positions)))]


def _star(fault: Any) -> bool:
    """The star before arguments that are given by name alone, which the engine takes for a product."""
    line, column = fault.start_pos
    line_text: str = Path(fault.module_path).read_text().splitlines()[line - 1][column:]
    return line_text.startswith("*,")


def name_of(fault: Any) -> str:
    """File, line, column, what is changed."""
    (line, column), operator = fault.start_pos, fault.operator_name.removeprefix("core/")
    return f"{fault.module_path}:{line}:{column} {operator} {fault.occurrence}"


def bash(room: Room, changed: str) -> str:
    """The room's tests, those of the changed folder first, then the cells, then what takes longer, until something
    fails; of a changed file of claims, the cells that it judges."""
    pytest = f"{shlex.quote(sys.executable)} -m pytest -x -q -n 0 -p no:cacheprovider"
    tests = sorted(room.tests, key=lambda path: Path(path).parts[2:3] != Path(changed).parts[2:3])
    parts = [f"{pytest} {' '.join(tests)}"] if tests else []
    models = [name for name in planted_models() if name.endswith(f"@{CELLS_ON}")]
    model_options = " ".join(f"--model {name}" for name in (MEASURED if room.measures else models))
    judged = changed if Path(changed).name.startswith("test_") else "claims"
    parts.append(f"{pytest} {judged} {model_options} {'--no-store' if room.measures else '--store store'}")
    parts += [f"{pytest} {' '.join(room.after)}"] if room.after else []
    return f"bash -c {shlex.quote(' && '.join(parts))}"


def report(room: str, lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """How many of each outcome, and every survivor as a difference."""
    rows = list(lines)
    count = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("killed", "late", "survived")}
    yield f"{room}: {len(rows)} drawn, " + ", ".join(f"{n} {outcome}" for outcome, n in count.items())
    for row in rows:
        if row["outcome"] == "survived":
            yield f"\n{row['fault']}\n{row['diff']}"


def read_results(file: Path) -> list[dict[str, Any]]:
    """What is on record already."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _try_fault(fault: Any, command: str, limit: float) -> dict[str, Any]:
    from cosmic_ray.mutating import mutate_and_test

    start = time.monotonic()
    result = mutate_and_test([fault], command, limit)
    seconds = time.monotonic() - start
    outcome = "late" if seconds >= limit else "killed" if result.is_killed else "survived"
    return {"outcome": outcome, "seconds": round(seconds, 1), "diff": result.diff}


def _baseline(command: str) -> float:
    """Seconds of the tests without a fault, from a store that is filled already; they must pass."""
    seconds = 0.0
    for _ in range(2):
        start = time.monotonic()
        result = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if result.returncode:
            raise RuntimeError(f"the tests fail without a fault:\n{result.stdout[-4000:]}\n{result.stderr[-2000:]}")
    return seconds


def _copy(tree: Path) -> None:
    """The files of the checkout that git knows or would know, and what the tests of rooms read."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tree / name)


def _files(part: Path) -> list[Path]:
    return [part] if part.suffix else sorted(part.glob("**/*.py"))


def find_unread_spans(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations begin and end: nothing evaluates them."""
    notes: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg | ast.AnnAssign):
            notes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            notes.append(node.returns)
    return [
        ((note.lineno, note.col_offset), (note.end_lineno or note.lineno, note.end_col_offset or 0))
        for note in notes
        if note is not None
    ]


if __name__ == "__main__":
    raise SystemExit(main())
