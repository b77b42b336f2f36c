"""A model that is judged, with what only the judge's clerk may know: how it is loaded, and what was planted in it.

Tests of claims see a `Study`, which keeps this to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rebinding.paper import circuit as circuit_files
from rebinding.paper.circuit import Circuit, CircuitError
from rebinding.paper.claim import Claim
from rebinding.paper.graph import Graph
from rebinding.paper.numbers import PublishedNumber, number, numbers, share_kept
from rebinding.paper.numbers import circuit as published_circuit
from rebinding.paper.procedure import Procedure, ProcedureName, given
from rebinding.planted import Declared, Truth
from rebinding.planted.truth import directions_of
from rebinding.study.anywhere import searched
from rebinding.study.asked import Asked
from rebinding.study.bench import Bench
from rebinding.study.circuit import owner_of
from rebinding.study.plants import declared
from rebinding.study.settings import ANYWHERE, STAGES, Settings
from rebinding.study.tracing import WIDE
from rebinding.subjects import Subject, SubjectError
from rebinding.world.chat import Form
from rebinding.world.designs import DesignName

PAPER = {"able": 300, "able_wide": 300, "paths": 100, "evaluated": 300, "pruned": 50}
"""Prompts on the paper's models, where a claim does not say."""
PLANTED = {"able": 60, "able_wide": 40, "paths": 36, "evaluated": 72, "pruned": 36}
"""The same on planted models. `evaluated` is what the row that needs most of them says: one run serves all rows."""
DIRECTIONS, FEWEST_DIRECTIONS = 100, 24
DRAWS, PLANTED_DRAWS = 200, 40
"""Random directions; 40 decide whether nine in ten do less, where all of them do."""
QUANTITIES = {"accuracy": "accuracy", "margin": "margin", "logit": "logit", "heads": "share", "roles": "dlogit"}
"""The kind of quantity behind a plant's printed number, by how its name begins; other names end with it."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model, loaded when its first evidence is computed and let go with the case."""

    asked: Asked
    settings: Settings
    refused: dict[str, SubjectError | CircuitError] = field(default_factory=dict)
    """Why a model could not be loaded."""
    begins: Callable[[str], None] = field(default=lambda experiment: None)
    """Told the name of every experiment before it is measured, or read from the store."""

    @property
    def name(self) -> str:
        return self.asked.name

    @cached_property
    def plant(self) -> Declared | None:
        """What a planted model says of itself."""
        return None if self.asked.plant is None else declared(self.asked.plant, self.settings.store)

    def truth(self, claim: Claim) -> Truth | None:
        """What the planted mechanism says of a claim; nothing, where nobody has derived it."""
        return None if self.plant is None else self.plant.truth.get(claim.id)

    # loading

    @cached_property
    def bench(self) -> Bench:
        return self._bench(self.name)

    @cached_property
    def wide_bench(self) -> Bench:
        """For stories of five boxes; a planted model is built anew for those."""
        if self.asked.plant is None:
            return self.bench
        return self._bench(replace(self.asked.plant, boxes=WIDE).name)

    @property
    def form(self) -> Form | None:
        """The chat form in which the paper may have asked this model; of a plant it could not."""
        return None if self.plant else self.bench.subject.form

    def _bench(self, name: str) -> Bench:
        bench = self.settings.engine.bench(self._subject(name), self.settings.store)
        return replace(bench, first=self.settings.first)

    def _subject(self, name: str) -> Subject:
        """Load a model once; what failed is not tried again. A circuit file is held against it before anything runs."""
        if name in self.refused:
            raise self.refused[name]
        try:
            subject = self._load(name)
            if self.settings.circuit not in (None, "published", STAGES, ANYWHERE):
                circuit_files.load(Path(str(self.settings.circuit)), owner_of(subject))
        except (SubjectError, CircuitError) as error:
            self.refused[name] = error
            raise
        return subject

    def _load(self, name: str) -> Subject:
        if self.settings.remote:
            from rebinding.subjects.remote import load_remote  # nnsight takes a while to import

            return load_remote(name)
        dtype, settings = self.settings.dtype or self.asked.dtype, self.settings
        return settings.engine.subject(name, dtype=dtype, device=settings.device, store=settings.store)

    # what is asked of it

    def n(self, claim: Claim) -> int:
        """How many prompts the claim is judged on."""
        truth = self.truth(claim)
        return self.settings.samples or (truth.n if truth else claim.n)

    def conventions(self, like: ProcedureName) -> Procedure:
        """The conventions under which such rows are judged; as given, where the run is about the other procedure."""
        return next((one for one in self.settings.procedures if one.like == like), given(like))

    def size(self, what: str) -> int:
        """How many prompts evidence has that serves several claims."""
        return self.settings.samples or (PLANTED if self.plant else PAPER)[what]

    def directions(self, sets: int) -> int:
        """How many prompts a slot's directions are averaged over, in each of so many sets. What the words leave in the
        means of a plant may average out over all of its sets."""
        if self.plant is None:
            return self.settings.samples or DIRECTIONS
        return max(FEWEST_DIRECTIONS, directions_of(self.plant.mechanism) // sets)

    @property
    def draws(self) -> int:
        """How many random directions are drawn."""
        return PLANTED_DRAWS if self.plant else DRAWS

    @property
    def mean_set(self) -> DesignName:
        """What the other heads are held at: as published on models; on plants mostly such that no slot is known."""
        return self.plant.means if self.plant else self.settings.design

    # what is printed of it

    def printed(self, id: str) -> PublishedNumber | None:
        """The number that the paper prints for this model, or would have printed for a plant."""
        if self.plant is not None:
            value = self.plant.printed.get(id)
            kind: Any = QUANTITIES.get(id.partition(".")[0]) or id.rpartition(".")[2]
            return (
                None if value is None else PublishedNumber(id, value, 0.005, kind, "planted", f"{value:.2f}", 300, 10)
            )
        if id == "heads.share":
            return None if self.asked.alias is None else share_kept(self.asked.alias)
        full = f"{id}@{self.asked.alias}"
        return number(full) if full in numbers() else None

    @property
    def circuit_from(self) -> str:
        """Where the circuit comes from, in a word."""
        if self.settings.circuit is not None:
            return self.settings.circuit
        if self.plant is not None:
            return "declared"
        return "published" if self.asked.shape_fits else STAGES

    @cached_property
    def graph(self) -> Graph:
        """What the search that is not told where to look finds on this model."""
        return searched(self.bench)

    def given_circuit(self) -> Circuit | None:
        """The circuit that claims are about, unless it is the one that the five stages are to discover."""
        if self.circuit_from == ANYWHERE:
            return self.graph.circuit()
        owner = owner_of(self.bench.subject)
        match self.circuit_from:
            case "discovered":
                return None
            case "declared" | "published":
                heads = self.plant.circuit if self.plant else published_circuit(str(self.asked.alias))
                return Circuit(heads).check(owner.n_layers, owner.n_heads)
            case file:
                return circuit_files.load(Path(file), owner)
