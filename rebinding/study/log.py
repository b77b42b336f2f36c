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
class RequestUse:
    """A request of a claim, and the origin of the circuit in it.

    `supports_verdict` is false for the evidence of gates, on which the verdict does not rest.
    """

    request: Request
    circuit: str | None
    supports_verdict: bool


class EvidenceLog:
    """Gets evidence from its sources and caches it. `on_begin` is called with the experiment's name before each
    piece of evidence is fetched."""

    def __init__(self, on_begin: Callable[[str], object] = lambda experiment: None) -> None:
        self.on_begin = on_begin
        self.evidence: dict[Request, Evidence] = {}
        self.seconds: dict[Request, float] = {}
        """The seconds that each piece of evidence took to compute, or to read from the store."""
        self.stages: dict[str, Paths] = {}
        """The request of each stage of our own discovery."""
        self.used: list[RequestUse] = []
        """The requests since this list was last cleared."""

    def get(
        self, session: Session, request: Request, *, circuit: str | None = None, supports_verdict: bool = True
    ) -> Evidence:
        """Evidence that has passed its gates; the first failed gate is raised."""
        self.used.append(RequestUse(request, circuit, supports_verdict))
        if request not in self.evidence:
            begin = perf_counter()
            if isinstance(request, OnPrompts):
                require(aligned_pairs(session.prompts, request.prompts))
            self.on_begin(request.KIND.name)
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
    required = [name for name in rows.columns if rows[name].dtype.kind == "f" and name not in kind.nullable]
    yield finite(*(rows[name].to_numpy() for name in required))
    yield declared_n(rows[kind.unit].nunique(), request.n)
    edit_columns = request.edit_columns
    if edit_columns is not None:
        edited = rows if kind.unedited is None else rows[rows[kind.unedited[0]] != kind.unedited[1]]
        changes = edited["relative_change"]
        by_edit = [edited[name] for name in edit_columns]
        changes = changes.groupby(by_edit, observed=True).max() if by_edit else changes.max()
        yield edits_change_values(np.atleast_1d(np.asarray(changes, dtype=np.float64)))


def aligned_pairs(prompts: Prompts, prompt_set: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    encoded = prompts.encode(prompt_set)
    originals = [len(prompt) for prompt in encoded.prompts] if encoded.counterfactuals else []
    return equal_lengths(originals, [len(prompt) for prompt in encoded.counterfactuals])
