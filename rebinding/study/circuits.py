"""The circuit of a model that claims are about, and the circuits that discovery finds on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import kept
from rebinding.experiments.paths.discovery import Discovery, discover_circuit, smallest_fall
from rebinding.experiments.paths.request import Paths, conventions_of_plant, draw_noise_pairs
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import CircuitWay, ProcedureName
from rebinding.study.case import Case
from rebinding.study.gates import Gates
from rebinding.study.log import EvidenceLog
from rebinding.study.settings import STAGES
from rebinding.verdicts import circuit_found, require


class Circuits:
    """Finds circuits when they are needed; a study shares it with itself read at other tokens."""

    def __init__(self, case: Case, gates: Gates, log: EvidenceLog) -> None:
        self._case = case
        self._gates = gates
        self._log = log

    @cached_property
    def judged(self) -> Circuit:
        """The circuit that claims are about, unless they say that it is the discovered one."""
        given = self._case.given_circuit()
        return self.pruned if given is None else given

    @cached_property
    def pruned(self) -> Circuit:
        """What pruning leaves of the circuit that the controlled procedure discovers."""
        (way, *_) = self.way("controlled").candidates.values()
        return kept(self._pruning("controlled", way))

    def way(self, procedure: ProcedureName) -> CircuitWay:
        """The conventions of section 4.1; a paper about a plant would have had others."""
        given = self._case.conventions(procedure).circuit
        way = conventions_of_plant(given, procedure, self._case.mean_set) if self._case.plant else given
        return replace(way, means=self._case.mean_set) if way.means == "published" else way

    def discoveries(self, procedure: ProcedureName) -> Mapping[str, Discovery]:
        """The heads that path patching finds, in every way that it may have been done."""
        return {name: self.discovery(procedure, way) for name, way in self.way(procedure).candidates.items()}

    def discovery(self, procedure: ProcedureName, way: CircuitWay) -> Discovery:
        """The heads that path patching finds in one way; the least of them must stand out from the noise floor."""
        session = self._case.session

        def ask(request: Paths) -> Evidence:
            if procedure == "controlled":
                self._log.stages[request.stage.group] = request
            return self._log.get(session, request)

        found = discover_circuit(draw_noise_pairs(session.prompts, way, self._case.sizes.of("paths")), way, ask)
        scored = way.score == "logit" and way.select != "published"  # else no score in logits decides who is kept
        weakest = smallest_fall(found) if scored else None
        for gate in self._gates.above_the_floor(weakest):
            require(gate)
        return found

    def prunings(self, procedure: ProcedureName, *, every: bool) -> Mapping[str, Evidence]:
        """The walk over each discovered circuit, in several orders, on prompts like those it was found on. Without
        `every` the first discovery alone: it has the conventions of the released code."""
        way = self.way(procedure)
        for gate in self._gates.above_the_floor(way.prune_step):
            require(gate)
        candidates = list(way.candidates.items())
        return {name: self._pruning(procedure, one) for name, one in (candidates if every else candidates[:1])}

    def _pruning(self, procedure: ProcedureName, way: CircuitWay) -> Evidence:
        found = self.discovery(procedure, way).circuit
        require(circuit_found(found.heads, self._case.sizes.of("paths")))
        request = request_pruning(self._case.session.prompts, found, way, n=self._case.sizes.of("pruned"))
        return self._log.get(self._case.session, request, circuit=STAGES)
