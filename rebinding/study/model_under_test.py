"""A model under test: how it is loaded, on how much it is judged, and what was planted in it.

Tests of claims see a `Study`, which hides both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rebinding.api.model import Model
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.search.measure import REMOTE_MODEL, search_model
from rebinding.experiments.tracing.request import WIDE
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, ModelError
from rebinding.models.errors import ChangedModel
from rebinding.models.loaded_model import owner_of
from rebinding.paper import circuit as circuit_files
from rebinding.paper.circuit import Circuit, CircuitError
from rebinding.paper.claim import Claim
from rebinding.paper.numbers import OF_PLANT, PublishedNumber, number, numbers, share_kept
from rebinding.paper.numbers import circuit as published_circuit
from rebinding.paper.procedure import Procedure, ProcedureName, builtin_procedure
from rebinding.planted import Declared, Truth
from rebinding.planted.truth import directions_of
from rebinding.study.engine import Session
from rebinding.study.model_spec import ModelSpec
from rebinding.study.plants import declared
from rebinding.study.settings import ALL_POSITIONS, STAGES, Settings
from rebinding.task.chat import Form
from rebinding.task.designs import DesignName

QUANTITIES = {"accuracy": "accuracy", "margin": "margin", "logit": "logit", "heads": "share", "roles": "dlogit"}
"""The kind of a plant's printed number, by the first part of its name; other names end with the kind."""
PAPER = {"able": 300, "able_wide": 300, "paths": 100, "evaluated": 300, "pruned": 50}
"""Default numbers of prompts on the paper's models."""
PLANTED = {"able": 24, "able_wide": 24, "paths": 36, "evaluated": 60, "pruned": 36}
"""The same on planted models. `evaluated` is the largest number of any row: one run serves all rows."""
DIRECTIONS, FEWEST_DIRECTIONS = 100, 12
PLANTED_SETS = 5
"""The largest number of sets of directions on planted models; fewer than five decide nothing."""
DRAWS, PLANTED_DRAWS = 200, 48
"""Random directions; 48 suffice to decide that nine in ten have a smaller effect, where all but one have."""


@dataclass(frozen=True)
class Sizes:
    """The numbers of prompts and of random directions on which a model is judged: those of the claim, the paper or the
    plant. `samples` replaces all numbers of prompts, if given."""

    plant: Declared | None
    samples: int | None

    def of_claim(self, claim: Claim) -> int:
        """How many prompts a claim is judged on."""
        truth = None if self.plant is None else self.plant.truth.get(claim.id)
        return self.samples or (truth.n if truth else claim.n)

    def of(self, kind: str) -> int:
        """The number of prompts of evidence that serves several claims; `kind` is a key of `PAPER`."""
        return self.samples or (PLANTED if self.plant else PAPER)[kind]

    def sets(self, most: int) -> int:
        """The number of measured sets of directions, where a procedure has `most`."""
        return min(most, PLANTED_SETS) if self.plant else most

    def directions(self, sets: int) -> int:
        """The number of prompts over which a slot's directions are averaged, in each of `sets` sets. On a plant, the
        effect of words averages out over all sets together."""
        if self.plant is None:
            return self.samples or DIRECTIONS
        return max(FEWEST_DIRECTIONS, directions_of(self.plant.mechanism) // sets)

    @property
    def draws(self) -> int:
        """The number of random directions."""
        return PLANTED_DRAWS if self.plant else DRAWS


class ModelUnderTest:
    """A model, loaded when its first evidence is computed."""

    def __init__(self, spec: ModelSpec, settings: Settings) -> None:
        self.spec = spec
        self.settings = settings
        self._refused: dict[str, ModelError | CircuitError] = {}
        """The errors of models that could not be loaded."""

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def plant(self) -> Declared | None:
        """The circuit and printed numbers that a planted model declares."""
        return None if self.spec.plant is None else declared(self.spec.plant, self.settings.store)

    def truth(self, claim: Claim) -> Truth | None:
        """The true verdict of a claim on a planted model; None where it was not derived."""
        return None if self.plant is None else self.plant.truth.get(claim.id)

    # loading

    @cached_property
    def session(self) -> Session:
        return self._open(self.name)

    @cached_property
    def wide_session(self) -> Session:
        """The session for stories of five boxes; a planted model is rebuilt for them."""
        if self.spec.plant is None:
            return self.session
        return self._open(replace(self.spec.plant, boxes=WIDE).name)

    def session_for(self, boxes: int) -> Session:
        """The session for stories of this many boxes."""
        return self.wide_session if boxes == WIDE else self.session

    @property
    def loaded_model(self) -> LoadedModel:
        return self.session.loaded_model

    def open(self) -> Model:
        """The model as the public interface has it. It has to be in this process."""
        if self.settings.remote or not self.settings.engine.is_local:
            raise ModelError(
                f"{self.name}: rows about a task of their own run the model in this process; leave out --remote and"
                " --engine"
            )
        return Model(self.loaded_model)

    @property
    def form(self) -> Form | None:
        """The chat form in which the paper may have asked this model; None for a plant."""
        return None if self.plant else self.session.form or self.loaded_model.form

    def _open(self, name: str) -> Session:
        loaded_model = self._load_once(name)
        session = self.settings.engine.session(
            loaded_model, self.settings.store, skip_prompts=self.settings.skip_prompts
        )
        session.prompts.wording = self.settings.wording
        return session

    def _load_once(self, name: str) -> LoadedModel:
        """Load a model once; a failure is not retried. A circuit file is checked against it before anything runs."""
        if name in self._refused:
            raise self._refused[name]
        try:
            loaded_model = self._load(name)
            self._check_fingerprint(name, loaded_model)
            if self.settings.circuit not in (None, "published", STAGES, ALL_POSITIONS):
                circuit_files.load(Path(str(self.settings.circuit)), owner_of(loaded_model))
        except (ModelError, CircuitError) as error:
            self._refused[name] = error
            raise
        return loaded_model

    def _check_fingerprint(self, name: str, loaded_model: LoadedModel) -> None:
        """Refuse a model that has another fingerprint than the run announced."""
        announced = self.settings.fingerprints.get(name, loaded_model.fingerprint)
        if announced != loaded_model.fingerprint:
            raise ChangedModel(
                f"{name} was announced with the fingerprint {announced[:12]}; loaded by its name in"
                f" {loaded_model.dtype} it has {loaded_model.fingerprint[:12]}: other weights, another dtype, revision"
                " or tokenizer. Save the model that you mean with save_pretrained(FOLDER) and judge FOLDER, or name the"
                " dtype (--dtype) and the revision (owner/name@revision)"
            )

    def _load(self, name: str) -> LoadedModel:
        if self.settings.remote:
            from rebinding.models.remote import load_remote  # nnsight takes a while to import

            return load_remote(name)
        dtype, settings = self.settings.dtype or self.spec.dtype, self.settings
        return settings.engine.loaded_model(name, dtype=dtype, device=settings.device, store=settings.store)

    # sizes and conventions

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of all requests."""
        return Sizes(self.plant, self.settings.samples)

    def conventions(self, like: ProcedureName) -> Procedure:
        """The conventions of a procedure: those of the run, or the built-in ones if the run has none for it. A planted
        model gets fewer sets of directions."""
        procedure = next((own for own in self.settings.procedures if own.like == like), builtin_procedure(like))
        batches = self.sizes.sets(procedure.binding.batches)
        return replace(procedure, binding=replace(procedure.binding, batches=batches))

    @property
    def mean_set(self) -> DesignName:
        """The design whose means replace ablated heads: the run's; on plants mostly one that reveals no slot."""
        return self.plant.means if self.plant else self.settings.design

    # printed numbers and circuits

    def printed(self, id: str) -> PublishedNumber | None:
        """The number that the paper prints for this model, or that a plant declares."""
        if self.plant is not None:
            value = self.plant.printed.get(id)
            kind: Any = QUANTITIES.get(id.partition(".")[0]) or id.rpartition(".")[2]
            return None if value is None else PublishedNumber(id, value, 0.005, kind, OF_PLANT, f"{value:.2f}", 300, 10)
        if id == "heads.share":
            return None if self.spec.alias is None else share_kept(self.spec.alias)
        full = f"{id}@{self.spec.alias}"
        return number(full) if full in numbers() else None

    @property
    def circuit_from(self) -> str:
        """The origin of the circuit, in one word."""
        if self.settings.circuit is not None:
            return self.settings.circuit
        if self.plant is not None:
            return "declared"
        return "published" if self.spec.shape_fits else STAGES

    @cached_property
    def graph(self) -> Graph:
        """The graph that position-free discovery finds on this model."""
        source = self.session.source
        if not isinstance(source, Workbench):
            raise ModelError(f"{self.name}: {REMOTE_MODEL}")
        return search_model(source, self.name)

    def load_circuit(self) -> Circuit | None:
        """The circuit that claims are about; None if the five stages are to discover it."""
        if self.circuit_from == ALL_POSITIONS:
            return self.graph.circuit()
        owner = owner_of(self.loaded_model)
        match self.circuit_from:
            case "discovered":
                return None
            case "declared" | "published":
                heads = self.plant.circuit if self.plant else published_circuit(str(self.spec.alias))
                return Circuit(heads).check(owner.n_layers, owner.n_heads)
            case file:
                circuit = circuit_files.load(Path(file), owner)
                if circuit.mlps:
                    raise CircuitError(
                        f"{file} has MLPs, and the paper's claims are about heads; rebinding.evaluate and"
                        " rebinding.faithfulness take such a circuit"
                    )
                return circuit
