"""What must hold before a sentence is looked at, whatever it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from rebinding.experiments.tracing.request import WIDE, story
from rebinding.experiments.unedited.request import Floors, request_ability, request_floors, request_replays
from rebinding.experiments.unedited.summary import floor_of, smallest_change
from rebinding.paper.claim import Claim
from rebinding.study.engine import Session
from rebinding.study.log import EvidenceLog
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoded
from rebinding.verdicts import Gate, above_chance, above_guessing, noise_floor, replay_equals_forward


@dataclass(frozen=True, eq=False)
class Gates:
    """Whether a model does the task, and whether what is measured of it is more than rounding."""

    case: ModelUnderTest
    log: EvidenceLog

    def of(self, claim: Claim) -> Iterator[Gate]:
        """What must hold of the model before a claim is looked at, cheapest first."""
        yield from self.replays_as_it_runs(claim.boxes)
        yield from self.above_the_floor(smallest_change(claim), claim.boxes)
        yield self.able(claim.boxes)
        yield self.beyond_guessing(claim.boxes)

    def replays_as_it_runs(self, boxes: int) -> Iterator[Gate]:
        """Whether unedited replays are the model's own forward; a model that is served elsewhere replays nothing."""
        if self.case.settings.remote:
            return
        session, drawn = self.story(boxes)
        rows = self.log.get(session, request_replays(session.prompts, drawn), ground=False).rows
        yield replay_equals_forward(rows["off"], rows["allowed"])

    def above_the_floor(self, counts: float | None, boxes: int = 3) -> Iterator[Gate]:
        """Whether so many logits stand out from what doing nothing does; what is not in logits is not compared."""
        floor = None if counts is None else self.measured_floor(boxes)
        if counts is not None and floor is not None:
            yield noise_floor(counts, floor)

    def measured_floor(self, boxes: int = 3) -> float | None:
        """What doing nothing does at most, in logits; a model that is served elsewhere is not asked."""
        if self.case.settings.remote:
            return None
        session, drawn = self.story(boxes)
        request = request_floors(session.prompts, drawn, session.loaded_model.dtype)
        return floor_of(self.log.get(session, request, ground=False))

    def floor(self) -> float | None:
        """The noise floor that the last sentence was compared with; none, where nothing was."""
        requests = [use.request for use in self.log.used if isinstance(use.request, Floors)]
        return floor_of(self.log.known[requests[-1]]) if requests and requests[-1] in self.log.known else None

    def beyond_guessing(self, boxes: int) -> Gate:
        """Whether it does the task where no slot, and no box because of where it is named, is right more often than
        another: on whole crossings of the counterbalanced design."""
        session = self.case.session_for(boxes)
        crossing = boxes * boxes
        n = crossing * max(2, ceil(self.case.sizes.of("able_wide" if boxes == WIDE else "able") / crossing))
        request = request_ability(session.prompts, story(session.prompts, "counterbalanced", boxes), n)
        hits = self.log.get(session, request, ground=False).rows["hit"].to_numpy() > 0
        return above_guessing(hits, guesses(session.prompts.encode(request.prompts).prompts))

    def able(self, boxes: int = 3, cut: int = 0) -> Gate:
        """Whether the full model can do the task; or that many tokens before the ':' already."""
        session, drawn = self.story(boxes)
        n = self.case.sizes.of("able_wide" if boxes == WIDE else "able")
        return self.above_chance(session, drawn, n, cut)

    def able_at(self, n: int, **design: Any) -> Gate:
        """Whether the full model can do another task."""
        name = design.pop("name", self.case.settings.design)
        return self.above_chance(self.case.session, self.case.session.prompts.design(name, **design), n)

    def above_chance(self, session: Session, drawn: Design, n: int, cut: int = 0) -> Gate:
        """Whether the full model answers more prompts than chance does."""
        evidence = self.log.get(session, request_ability(session.prompts, drawn, n, cut), ground=False)
        return above_chance(evidence.rows["hit"].to_numpy() > 0, 1 / drawn.boxes)

    def story(self, boxes: int) -> tuple[Session, Design]:
        """The stories of a run with so many boxes, and the model that is asked about them."""
        session = self.case.session_for(boxes)
        return session, story(session.prompts, self.case.settings.design, boxes)


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
