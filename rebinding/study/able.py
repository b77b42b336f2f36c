"""What must hold before a sentence is looked at, whatever it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from rebinding.study import circuit, floors, replays, tracing
from rebinding.study.bench import Bench
from rebinding.study.checks import guesses
from rebinding.study.questions import Questions
from rebinding.verdicts import Gate, above_chance, above_guessing, noise_floor, replay_equals_forward
from rebinding.world.designs import Design


@dataclass(frozen=True, eq=False)
class Able(Questions):
    """Whether a model does the task, and whether what is measured of it is more than rounding."""

    def replays_as_it_runs(self, boxes: int) -> Iterator[Gate]:
        """Whether unedited replays are the model's own forward; a model that is served elsewhere replays nothing."""
        if self._case.settings.remote:
            return
        bench, drawn = self._story(boxes)
        found = self._ask(bench, replays.asked(bench, drawn), ground=False).rows
        yield replay_equals_forward(found["off"], found["allowed"])

    def above_the_floor(self, counts: float | None, boxes: int = 3) -> Iterator[Gate]:
        """Whether so many logits stand out from what doing nothing does; a model that is served elsewhere is not asked,
        and what is not in logits is not held against a floor of logits."""
        if counts is None or self._case.settings.remote:
            return
        bench, drawn = self._story(boxes)
        asked = floors.asked(bench, drawn)
        yield noise_floor(counts, floors.floor_of(self._ask(bench, asked, ground=False)))

    def floor(self) -> float | None:
        """The noise floor that gates of the last sentence looked at; none, where nothing was held against it."""
        found = [use.request for use in self.used if isinstance(use.request, floors.Floors)]
        return floors.floor_of(self.known[found[-1]]) if found and found[-1] in self.known else None

    def beyond_guessing(self, boxes: int) -> Gate:
        """Whether it does the task where no slot, and no box because of where it is named, is right more often than
        another: on whole crossings of the counterbalanced design."""
        bench = self._bench(boxes)
        crossing = boxes * boxes
        n = crossing * max(2, ceil(self._case.size("able_wide" if boxes == tracing.WIDE else "able") / crossing))
        asked = circuit.ability(bench, tracing.story(bench, "counterbalanced", boxes), n)
        hits = self._ask(bench, asked, ground=False).rows["hit"].to_numpy() > 0
        return above_guessing(hits, guesses(bench.drawn(asked.prompts).prompts))

    def able(self, boxes: int = 3, cut: int = 0) -> Gate:
        """Whether the full model can do the task; or that many tokens before the ':' already."""
        bench = self._bench(boxes)
        n = self._case.size("able_wide" if boxes == tracing.WIDE else "able")
        return self._above_chance(bench, tracing.story(bench, self._case.settings.design, boxes), n, cut)

    def able_at(self, n: int, **design: Any) -> Gate:
        """Whether the full model can do another task."""
        name = design.pop("name", self._case.settings.design)
        return self._above_chance(self._case.bench, self._case.bench.design(name, **design), n)

    def _above_chance(self, bench: Bench, drawn: Design, n: int, cut: int = 0) -> Gate:
        found = self._ask(bench, circuit.ability(bench, drawn, n, cut), ground=False)
        return above_chance(found.rows["hit"].to_numpy() > 0, 1 / drawn.boxes)
