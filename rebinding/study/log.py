"""The evidence that a study has asked for: each piece is fetched once, passes its gates, and is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import PromptSet
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import Prompts
from rebinding.study.engine import Session
from rebinding.verdicts import require
from rebinding.verdicts.gates import Gate, declared_n, edits_moved, equal_lengths, finite


@dataclass(frozen=True)
class Use:
    """A piece of evidence that a sentence rests on: what was asked, and where the circuit in it comes from.

    What a gate looked at is no ground of the sentence.
    """

    request: Request
    circuit: str | None
    ground: bool


class EvidenceLog:
    """Asks evidence sources, and remembers what was asked. `begins` hears the name of every experiment beforehand."""

    def __init__(self, begins: Callable[[str], object] = lambda experiment: None) -> None:
        self.begins = begins
        self.known: dict[Request, Evidence] = {}
        self.seconds: dict[Request, float] = {}
        """What each piece of evidence took to compute, or to read from the store."""
        self.stages: dict[str, Paths] = {}
        """What each stage of our own discovery asked for."""
        self.used: list[Use] = []
        """What was asked for since somebody emptied this."""

    def get(self, session: Session, request: Request, *, circuit: str | None = None, ground: bool = True) -> Evidence:
        """Evidence that has passed its gates; the first that it fails is raised."""
        self.used.append(Use(request, circuit, ground))
        if request not in self.known:
            begin = perf_counter()
            if isinstance(request, OnPrompts):
                require(aligned_pairs(session.prompts, request.prompts))
            self.begins(request.KIND.name)
            evidence = session.source.get(request)
            self.seconds[request] = perf_counter() - begin
            for gate in gates_of(request, evidence):
                require(gate)
            self.known[request] = evidence
        return self.known[request]

    def request_of(self, evidence: Evidence) -> Request:
        """What was asked for, when this evidence came of it."""
        return next(request for request, known in self.known.items() if known is evidence)


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


def aligned_pairs(prompts: Prompts, shown: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    drawn = prompts.encode(shown)
    own = [len(one) for one in drawn.prompts] if drawn.counterfactuals else []
    return equal_lengths(own, [len(one) for one in drawn.counterfactuals])
