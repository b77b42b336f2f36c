"""Every mutant on the cells that should catch it, as a table: `python -m tests.oracles.mutants [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.oracles.mutants.mutants import MUTANTS
from tests.oracles.mutants.tree_copy import apply, copy_tree, run


def main(names: list[str]) -> int:
    """Print one line per cell; the exit code is the number of mutants that somebody missed."""
    n_missed = 0
    for mutant in (mutant for mutant in MUTANTS if not names or mutant.name in names):
        with tempfile.TemporaryDirectory() as folder:
            tree = copy_tree(Path(folder))
            apply(mutant, tree)
            result = run(tree, mutant.cells, mutant.before)
        n_missed += None in result.values()
        for (claim, model), wrong in result.items():
            print(f"{mutant.name:45} {claim:40} {model:24} {wrong or 'NOT NOTICED'}", flush=True)
    return n_missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
