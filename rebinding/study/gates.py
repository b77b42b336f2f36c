"""The evidence of a study and its gates: those of each piece, and those that must pass before any claim is judged.

Each piece is computed or read once, passes its gates, and is recorded in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import PromptSet
from rebinding.experiments.circuit.request import request_group_knockout
from rebinding.experiments.circuit.summary import gate_group_acts
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.request import WIDE, story
from rebinding.experiments.unedited import (
    Floors,
    floor_of,
    request_ability,
    request_floors,
    request_replays,
    smallest_change,
)
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.claim import Claim
from rebinding.study.engine import Session
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoded
from rebinding.verdicts import above_chance, above_guessing, noise_floor, replay_equals_forward, require
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


def aligned_pairs(prompts: Stories, prompt_set: PromptSet) -> Gate:
    """Whether the two prompts of every pair have as many tokens; prompts without counterfactuals always do."""
    encoded = prompts.encode(prompt_set)
    originals = [len(prompt) for prompt in encoded.prompts] if encoded.counterfactuals else []
    return equal_lengths(originals, [len(prompt) for prompt in encoded.counterfactuals])


FEWEST_ABLE, FEWEST_SWAPPED = 24, 48
"""The fewest prompts of gates on ability, however few a row is judged on. A model that is right on 0.84 of them
passes the first with 99 % and the second with 96 %; the first with 8 prompts, with 25 %."""


@dataclass(frozen=True, eq=False)
class Gates:
    """Gates on a model: it does the task, and effects on it exceed rounding."""

    model: ModelUnderTest
    log: EvidenceLog

    def of(self, claim: Claim) -> Iterator[Gate]:
        """The gates of the model for a claim, cheapest first; a claim about a task of its own has its own gates."""
        if claim.own_task:
            return
        yield from self.check_replays(claim.boxes)
        yield from self.check_noise_floor(smallest_change(claim), claim.boxes)
        yield self.check_ability(claim.boxes)
        yield self.check_guessing(claim.boxes)

    def check_replays(self, boxes: int) -> Iterator[Gate]:
        """Whether unedited replays equal the model's own forward; a model on a server replays nothing."""
        if self.model.settings.remote:
            return
        session, stories = self.story(boxes)
        rows = self.log.get(session, request_replays(session.prompts, stories), supports_verdict=False).rows
        yield replay_equals_forward(rows["difference"], rows["tolerance"])

    def check_noise_floor(self, counts: float | None, boxes: int = 3) -> Iterator[Gate]:
        """Whether this many logits exceed the noise floor; effects in other units are not compared."""
        floor = None if counts is None else self.measure_floor(boxes)
        if counts is not None and floor is not None:
            yield noise_floor(counts, floor)

    def measure_floor(self, boxes: int = 3) -> float | None:
        """The noise floor, in logits: the largest effect of null edits. None for a model on a server."""
        if self.model.settings.remote:
            return None
        session, stories = self.story(boxes)
        request = request_floors(session.prompts, stories, session.loaded_model.dtype)
        return floor_of(self.log.get(session, request, supports_verdict=False))

    def floor(self) -> float | None:
        """The noise floor that the last claim was compared with; None where none was."""
        requests = [use.request for use in self.log.used if isinstance(use.request, Floors)]
        return floor_of(self.log.evidence[requests[-1]]) if requests and requests[-1] in self.log.evidence else None

    def check_guessing(self, boxes: int) -> Gate:
        """Whether the model does the task on whole crossings of the counterbalanced design, where no slot and no place
        of naming a box is right more often than others; on questions about swapped boxes, since any other box still
        holds its own object."""
        session = self.model.session_for(boxes)
        size = self.model.sizes.of("able_wide" if boxes == WIDE else "able")
        crossings = max(ceil(size / boxes**2), ceil(FEWEST_SWAPPED / (2 * boxes)))
        request = request_ability(
            session.prompts, story(session.prompts, "counterbalanced", boxes), crossings * boxes**2
        )
        hits = self.log.get(session, request, supports_verdict=False).rows["hit"].to_numpy() > 0
        prompts = session.prompts.encode(request.prompts).prompts
        swapped = about_swapped_boxes(prompts)
        return above_guessing(hits[swapped], {name: right[swapped] for name, right in guesses(prompts).items()})

    def check_ability(self, boxes: int = 3, cut: int = 0) -> Gate:
        """Whether the full model can do the task; with `cut`, that many tokens before the ':'."""
        session, stories = self.story(boxes)
        n = self.model.sizes.of("able_wide" if boxes == WIDE else "able")
        return self.check_chance(session, stories, max(n, FEWEST_ABLE), cut)

    def check_ability_at(self, n: int, **design: Any) -> Gate:
        """Whether the full model can do another task."""
        name = design.pop("name", self.model.settings.design)
        return self.check_chance(self.model.session, self.model.session.prompts.design(name, **design), n)

    def check_chance(self, session: Session, stories: Design, n: int, cut: int = 0) -> Gate:
        """Whether the full model answers more prompts than chance."""
        evidence = self.log.get(session, request_ability(session.prompts, stories, n, cut), supports_verdict=False)
        return above_chance(evidence.rows["hit"].to_numpy() > 0, 1 / stories.boxes)

    def check_group(self, circuit: Circuit, group: str, heads: Sequence[Head], origin: str) -> Gate:
        """Whether a group of the circuit matters to the answer; `heads` are all of the model."""
        session, stories = self.story(3)
        n = max(FEWEST_ABLE, self.model.sizes.of("paths"))
        request = request_group_knockout(session.prompts, stories, circuit, group, n, heads)
        evidence = self.log.get(session, request, supports_verdict=False, circuit=origin)
        return gate_group_acts(evidence, self.measure_floor() or 0.0)

    def story(self, boxes: int) -> tuple[Session, Design]:
        """The session and the stories of a run with this many boxes."""
        session = self.model.session_for(boxes)
        return session, story(session.prompts, self.model.settings.design, boxes)


def about_swapped_boxes(prompts: Sequence[Encoded]) -> npt.NDArray[np.bool_]:
    """Whether each prompt asks about a box that an operation names."""
    stories = ((encoded.prompt.story, encoded.prompt.question) for encoded in prompts)
    return np.array([any(box in labels_of(operation) for operation in story.operations) for story, box in stories])


def guesses(prompts: Sequence[Encoded]) -> Mapping[str, npt.NDArray[np.bool_]]:
    """The prompts on which a fixed strategy is right: always the object of one slot, or of the box that the operations
    name first, or last. (The first and the last object of the context are slots.)"""
    right: dict[str, list[bool]] = {}
    for encoded in prompts:
        story, answer = encoded.prompt.story, encoded.prompt.answer
        strategies = {f"always slot {slot}": thing for slot, thing in enumerate(story.objects)}
        labels = [label for operation in story.operations for label in labels_of(operation)]
        if labels:
            first, last = (story.objects[story.slot(label)] for label in (labels[0], labels[-1]))
            strategies |= {"the box named first": first, "the box named last": last}
        for name, thing in strategies.items():
            right.setdefault(name, []).append(thing == answer)
    return {name: np.array(hits) for name, hits in right.items()}
