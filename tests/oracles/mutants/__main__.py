"""Every mutant on the cells that should catch it, as a table: `python -m tests.oracles.mutants [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.oracles.mutants.mutants import MUTANTS
from tests.oracles.mutants.tree_copy import apply, copy_of_the_tree, run


def main(names: list[str]) -> int:
    """Print one line per cell; the exit code is the number of mutants that somebody missed."""
    missed = 0
    for mutant in (one for one in MUTANTS if not names or one.name in names):
        with tempfile.TemporaryDirectory() as folder:
            tree = copy_of_the_tree(Path(folder))
            apply(mutant, tree)
            found = run(tree, mutant.cells, mutant.before)
        missed += None in found.values()
        for (claim, model), wrong in found.items():
            print(f"{mutant.name:45} {claim:40} {model:24} {wrong or 'NOT NOTICED'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
