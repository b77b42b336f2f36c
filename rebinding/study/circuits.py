"""The circuit of a model that claims are about, and the circuits that discovery finds on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import circuit_after_pruning
from rebinding.experiments.paths.discovery import Discovery, discover_circuit, smallest_fall
from rebinding.experiments.paths.request import Paths, conventions_of_plant, draw_noise_pairs
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.study.gates import Gates
from rebinding.study.log import EvidenceLog
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import STAGES
from rebinding.verdicts import circuit_found, require


class Circuits:
    """Finds circuits when they are needed; a study shares it with itself read at other tokens."""

    def __init__(self, case: ModelUnderTest, gates: Gates, log: EvidenceLog) -> None:
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
        (conventions, *_) = self.conventions("controlled").candidates.values()
        return circuit_after_pruning(self._pruning("controlled", conventions))

    def conventions(self, procedure: ProcedureName) -> CircuitConventions:
        """The conventions of section 4.1; a paper about a plant would have had others."""
        given = self._case.conventions(procedure).circuit
        conventions = conventions_of_plant(given, procedure, self._case.mean_set) if self._case.plant else given
        return replace(conventions, means=self._case.mean_set) if conventions.means == "published" else conventions

    def discoveries(self, procedure: ProcedureName) -> Mapping[str, Discovery]:
        """The heads that path patching finds, in every way that it may have been done."""
        return {
            name: self.discovery(procedure, conventions)
            for name, conventions in self.conventions(procedure).candidates.items()
        }

    def discovery(self, procedure: ProcedureName, conventions: CircuitConventions) -> Discovery:
        """The heads that path patching finds in one way; the least of them must stand out from the noise floor."""
        session = self._case.session

        def ask(request: Paths) -> Evidence:
            if procedure == "controlled":
                self._log.stages[request.stage.group] = request
            return self._log.get(session, request)

        found = discover_circuit(
            draw_noise_pairs(session.prompts, conventions, self._case.sizes.of("paths")), conventions, ask
        )
        scored = (
            conventions.score == "logit" and conventions.select != "published"
        )  # else no score in logits decides who is kept
        weakest = smallest_fall(found) if scored else None
        for gate in self._gates.above_the_floor(weakest):
            require(gate)
        return found

    def prunings(self, procedure: ProcedureName, *, every: bool) -> Mapping[str, Evidence]:
        """The walk over each discovered circuit, in several orders, on prompts like those it was found on. Without
        `every` the first discovery alone: it has the conventions of the released code."""
        conventions = self.conventions(procedure)
        for gate in self._gates.above_the_floor(conventions.prune_step):
            require(gate)
        candidates = list(conventions.candidates.items())
        return {name: self._pruning(procedure, one) for name, one in (candidates if every else candidates[:1])}

    def _pruning(self, procedure: ProcedureName, conventions: CircuitConventions) -> Evidence:
        found = self.discovery(procedure, conventions).circuit
        require(circuit_found(found.heads, self._case.sizes.of("paths")))
        request = request_pruning(self._case.session.prompts, found, conventions, n=self._case.sizes.of("pruned"))
        return self._log.get(self._case.session, request, circuit=STAGES)
