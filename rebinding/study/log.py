"""The log of the evidence of a study: each piece is computed or read once, passes its gates, and is recorded."""

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
from rebinding.verdicts.gates import Gate, declared_n, edits_change_values, equal_lengths, finite


@dataclass(frozen=True)
class Use:
    """A request of a claim, and the origin of the circuit in it.

    `ground` is false for the evidence of gates, on which the claim itself does not rest.
    """

    request: Request
    circuit: str | None
    ground: bool


class EvidenceLog:
    """Gets evidence from its sources and caches it. `begins` is called with the experiment's name before each."""

    def __init__(self, begins: Callable[[str], object] = lambda experiment: None) -> None:
        self.begins = begins
        self.evidence: dict[Request, Evidence] = {}
        self.seconds: dict[Request, float] = {}
        """The seconds that each piece of evidence took to compute, or to read from the store."""
        self.stages: dict[str, Paths] = {}
        """The request of each stage of our own discovery."""
        self.used: list[Use] = []
        """The requests since this list was last cleared."""

    def get(self, session: Session, request: Request, *, circuit: str | None = None, ground: bool = True) -> Evidence:
        """Evidence that has passed its gates; the first failed gate is raised."""
        self.used.append(Use(request, circuit, ground))
        if request not in self.evidence:
            begin = perf_counter()
            if isinstance(request, OnPrompts):
                require(aligned_pairs(session.prompts, request.prompts))
            self.begins(request.KIND.name)
            evidence = session.source.get(request)
            self.seconds[request] = perf_counter() - begin
            for gate in gates_of(request, evidence):
                require(gate)
            self.evidence[request] = evidence
        return self.evidence[request]

    def request_of(self, evidence: Evidence) -> Request:
        """The request of a piece of evidence."""
        return next(request for request, stored in self.evidence.items() if stored is evidence)


def gates_of(request: Request, evidence: Evidence) -> Iterator[Gate]:
    """Gates: finite numbers in required columns, as many units as requested, and no edit without effect."""
    kind, rows = request.KIND, evidence.rows
    required = [name for name in rows.columns if rows[name].dtype.kind == "f" and name not in kind.lacking]
    yield finite(*(rows[name].to_numpy() for name in required))
    yield declared_n(rows[kind.unit].nunique(), request.n)
    edits = request.edits
    if edits is not None:
        edited = rows if kind.unedited is None else rows[rows[kind.unedited[0]] != kind.unedited[1]]
        changes = edited["relative_change"]
        changes = changes.groupby([edited[name] for name in edits], observed=True).max() if edits else changes.max()
        yield edits_change_values(np.atleast_1d(np.asarray(changes, dtype=np.float64)))


def aligned_pairs(prompts: Prompts, prompt_set: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    encoded = prompts.encode(prompt_set)
    own = [len(prompt) for prompt in encoded.prompts] if encoded.counterfactuals else []
    return equal_lengths(own, [len(prompt) for prompt in encoded.counterfactuals])
