"""What every piece of evidence must pass before a sentence may look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence, PromptSet, Request
from rebinding.study.bench import Bench
from rebinding.verdicts import Gate, declared_n, edits_moved, equal_lengths, finite
from rebinding.world.boxes import labels_of
from rebinding.world.prompts import Encoded


def gates_of(request: Request, evidence: Evidence) -> Iterator[Gate]:
    """Finite numbers where there must be numbers, as many units as were asked for, and no edit that did nothing."""
    kind, rows = request.KIND, evidence.rows
    must = [name for name in rows.columns if rows[name].dtype.kind == "f" and name not in kind.lacking]
    yield finite(*(rows[name].to_numpy() for name in must))
    yield declared_n(rows[kind.unit].nunique(), request.n)
    edits = request.edits
    if edits is not None:
        made = rows if kind.unedited is None else rows[rows[kind.unedited[0]] != kind.unedited[1]]
        changes = made.groupby(list(edits), observed=True)["moved"].max() if edits else made["moved"].max()
        yield edits_moved(np.atleast_1d(np.asarray(changes, dtype=np.float64)))


def aligned_pairs(bench: Bench, prompts: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    drawn = bench.drawn(prompts)
    own = [len(one) for one in drawn.prompts] if drawn.others else []
    return equal_lengths(own, [len(one) for one in drawn.others])


def guesses(prompts: Sequence[Encoded]) -> Mapping[str, npt.NDArray[np.bool_]]:
    """On which prompts one would be right who always names the object of one slot, or that of the box which the
    operations name first, or last. (The first and the last object of the context are slots.)"""
    right: dict[str, list[bool]] = {}
    for one in prompts:
        story, answer = one.prompt.story, one.prompt.answer
        named = {f"always slot {slot}": thing for slot, thing in enumerate(story.objects)}
        labels = [label for operation in story.operations for label in labels_of(operation)]
        if labels:
            first, last = (story.objects[story.slot(label)] for label in (labels[0], labels[-1]))
            named |= {"the box named first": first, "the box named last": last}
        for name, thing in named.items():
            right.setdefault(name, []).append(thing == answer)
    return {name: np.array(hits) for name, hits in right.items()}
