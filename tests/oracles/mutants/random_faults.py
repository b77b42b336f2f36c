"""How much of a blind draw of changes the tests notice: `tox -e mutation -- ROOM [--draw N] [--seed N] [--found FILE]`.

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
    *(f"core/ReplaceBinaryOperator_{one}" for one in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Mul", "Mod_Add", "BitOr_BitAnd",
        "BitAnd_BitOr",
    )),
    *(f"core/ReplaceComparisonOperator_{one}" for one in (
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
            ("rebinding/study",), ("tests/study", f"--ignore={BY_HAND}", f"--ignore={BREAKING}"), measures=True,
            after=(BREAKING, BY_HAND),
        ),
        "designs": Room(("rebinding/task",), ("tests/task",), measures=True),
        "summaries": Room(tuple(f"rebinding/experiments/{one}/summary.py" for one in (
            "attention", "binding", "circuit", "paths", "roles", "search", "tracing", "unedited",
        )), tuple(f"tests/experiments/{one}" for one in (
            "attention", "binding", "roles", "tracing", "circuit/test_pruning.py", "search/test_summary.py",
        )),
        after=(BY_HAND,)),
        "measuring": Room(tuple(f"rebinding/experiments/{one}" for one in (
            "attention", "binding", "circuit", "paths", "roles", "static", "tracing", "unedited",
        )), tuple(f"tests/experiments/{one}" for one in (
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
    found = (options.found or Path(f"mutation-{options.room}-{options.seed}.jsonl")).absolute()
    room, known = ROOMS[options.room], {one["fault"] for one in told(found)}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _copy(Path.cwd())
        if store is not None:
            shutil.copytree(store, "store")
        limit = SLOWER * _baseline(bash(room, room.code[0]))
        faults = drawn(room, options.draw, options.seed)
        for fault in tqdm([one for one in faults if name_of(one) not in known], desc=options.room):
            line = {"fault": name_of(fault), **_tried(fault, bash(room, str(fault.module_path)), limit)}
            with found.open("a") as written:
                written.write(json.dumps(line) + "\n")
    print("\n".join(report(options.room, told(found))))
    return 0


def drawn(room: Room, n: int, seed: int) -> list[Any]:
    """One fault at each of `n` places of the code below this folder, blindly."""
    from cosmic_ray.commands.init import _all_work_items

    files = [path for part in room.code for path in _files(Path(part))]
    unread = {path: unread_in(path) for path in files}
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
    where = sorted(places)
    return [chance.choice(places[one]) for one in chance.sample(where, min(n, len(where)))]


def _star(fault: Any) -> bool:
    """The star before arguments that are given by name alone, which the engine takes for a product."""
    line, column = fault.start_pos
    there: str = Path(fault.module_path).read_text().splitlines()[line - 1][column:]
    return there.startswith("*,")


def name_of(fault: Any) -> str:
    """File, line, column, what is changed."""
    (line, column), what = fault.start_pos, fault.operator_name.removeprefix("core/")
    return f"{fault.module_path}:{line}:{column} {what} {fault.occurrence}"


def bash(room: Room, changed: str) -> str:
    """The room's tests, those of the changed folder first, then the cells, then what takes longer, until something
    fails; of a changed file of claims, the cells that it judges."""
    pytest = f"{shlex.quote(sys.executable)} -m pytest -x -q -n 0 -p no:cacheprovider"
    tests = sorted(room.tests, key=lambda one: Path(one).parts[2:3] != Path(changed).parts[2:3])
    parts = [f"{pytest} {' '.join(tests)}"] if tests else []
    models = [name for name in planted_models() if name.endswith(f"@{CELLS_ON}")]
    asked = " ".join(f"--model {name}" for name in (MEASURED if room.measures else models))
    judged = changed if Path(changed).name.startswith("test_") else "claims"
    parts.append(f"{pytest} {judged} {asked} {'--no-store' if room.measures else '--store store'}")
    parts += [f"{pytest} {' '.join(room.after)}"] if room.after else []
    return f"bash -c {shlex.quote(' && '.join(parts))}"


def report(room: str, lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """How many of each outcome, and every survivor as a difference."""
    every = list(lines)
    count = {outcome: sum(one["outcome"] == outcome for one in every) for outcome in ("killed", "late", "survived")}
    yield f"{room}: {len(every)} drawn, " + ", ".join(f"{n} {outcome}" for outcome, n in count.items())
    for one in every:
        if one["outcome"] == "survived":
            yield f"\n{one['fault']}\n{one['diff']}"


def told(found: Path) -> list[dict[str, Any]]:
    """What is on record already."""
    return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


def _tried(fault: Any, command: str, limit: float) -> dict[str, Any]:
    from cosmic_ray.mutating import mutate_and_test

    started = time.monotonic()
    done = mutate_and_test([fault], command, limit)
    seconds = time.monotonic() - started
    outcome = "late" if seconds >= limit else "killed" if done.is_killed else "survived"
    return {"outcome": outcome, "seconds": round(seconds, 1), "diff": done.diff}


def _baseline(command: str) -> float:
    """Seconds of the tests without a fault, from a store that is filled already; they must pass."""
    seconds = 0.0
    for _ in range(2):
        started = time.monotonic()
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if done.returncode:
            raise RuntimeError(f"the tests fail without a fault:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
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


def unread_in(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations begin and end: nothing evaluates them."""
    notes: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg | ast.AnnAssign):
            notes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            notes.append(node.returns)
    return [
        ((one.lineno, one.col_offset), (one.end_lineno or one.lineno, one.end_col_offset or 0))
        for one in notes
        if one is not None
    ]


if __name__ == "__main__":
    raise SystemExit(main())
