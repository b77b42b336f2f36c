"""The circuit that claims are about, and the circuits that discovery finds on a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import request_pruning
from rebinding.experiments.circuit.summary import circuit_after_pruning
from rebinding.experiments.paths.request import Paths, conventions_of_plant
from rebinding.experiments.paths.summary import Discovery, discover_circuit, smallest_fall
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.study.gates import EvidenceLog, Gates
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import STAGES
from rebinding.verdicts import circuit_found, require


class Circuits:
    """Finds circuits when they are needed; studies of one model at several readouts share it."""

    def __init__(self, model: ModelUnderTest, gates: Gates, log: EvidenceLog) -> None:
        self._model = model
        self._gates = gates
        self._log = log

    @cached_property
    def judged(self) -> Circuit:
        """The circuit that claims are about, unless they say that it is the discovered one."""
        circuit = self._model.load_circuit()
        return self.pruned if circuit is None else circuit

    @cached_property
    def pruned(self) -> Circuit:
        """The circuit that the controlled procedure discovers, after pruning."""
        (conventions, *_) = self.conventions("controlled").candidates.values()
        return circuit_after_pruning(self._pruning("controlled", conventions))

    def conventions(self, procedure: ProcedureName) -> CircuitConventions:
        """The conventions of section 4.1; a plant has its own."""
        conventions = self._model.conventions(procedure).circuit
        if self._model.plant:
            conventions = conventions_of_plant(conventions, procedure, self._model.mean_set)
        return replace(conventions, means=self._model.mean_set) if conventions.means == "published" else conventions

    def discoveries(self, procedure: ProcedureName) -> Mapping[str, Discovery]:
        """The heads that path patching finds, under every candidate convention."""
        return {
            name: self.discovery(procedure, conventions)
            for name, conventions in self.conventions(procedure).candidates.items()
        }

    def discovery(self, procedure: ProcedureName, conventions: CircuitConventions) -> Discovery:
        """The heads that path patching finds under one convention; the weakest must exceed the noise floor."""
        session = self._model.session

        def ask(request: Paths) -> Evidence:
            if procedure == "controlled":
                self._log.stages[request.stage.group] = request
            return self._log.get(session, request)

        discovery = discover_circuit(
            draw_noise_pairs(session.prompts, conventions, self._model.sizes.of("paths")), conventions, ask
        )
        by_logit = conventions.score == "logit" and conventions.select != "published"
        weakest = smallest_fall(discovery) if by_logit else None  # else no score in logits selects the heads
        for gate in self._gates.check_noise_floor(weakest):
            require(gate)
        return discovery

    def prunings(self, procedure: ProcedureName, *, every: bool) -> Mapping[str, Evidence]:
        """The pruning of each discovered circuit, in several orders, on prompts of the design it was found on. Without
        `every`, only the first discovery, which has the conventions of the released code."""
        conventions = self.conventions(procedure)
        for gate in self._gates.check_noise_floor(conventions.prune_step):
            require(gate)
        candidates = list(conventions.candidates.items())[: None if every else 1]
        return {name: self._pruning(procedure, candidate) for name, candidate in candidates}

    def _pruning(self, procedure: ProcedureName, conventions: CircuitConventions) -> Evidence:
        circuit = self.discovery(procedure, conventions).circuit
        require(circuit_found(circuit.heads, self._model.sizes.of("paths")))
        request = request_pruning(self._model.session.prompts, circuit, conventions, n=self._model.sizes.of("pruned"))
        return self._log.get(self._model.session, request, circuit=STAGES)
