"""What every piece of evidence must pass before a sentence may look at it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rebinding.evidence import Evidence, PromptSet, Request
from rebinding.study.bench import Bench
from rebinding.verdicts import Gate, declared_n, edits_moved, equal_lengths, finite


def gates_of(request: Request, evidence: Evidence) -> Iterator[Gate]:
    """Finite numbers where there must be numbers, as many units as were asked for, and no edit that did nothing."""
    kind, rows = request.KIND, evidence.rows
    must = [name for name in rows.columns if rows[name].dtype.kind == "f" and name not in kind.lacking]
    yield finite(*(rows[name].to_numpy() for name in must))
    yield declared_n(rows[kind.unit].nunique(), request.n)
    edits = request.edits
    if edits is not None:
        changes = rows.groupby(list(edits), observed=True)["moved"].max() if edits else rows["moved"].max()
        yield edits_moved(np.atleast_1d(np.asarray(changes, dtype=np.float64)))


def aligned_pairs(bench: Bench, prompts: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    drawn = bench.drawn(prompts)
    own = [len(one) for one in drawn.prompts] if drawn.others else []
    return equal_lengths(own, [len(one) for one in drawn.others])
