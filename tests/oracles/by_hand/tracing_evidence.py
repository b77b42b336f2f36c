"""Section 3 by hand: residuals of one prompt put into the run of another, one full forward a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd
from torch import Tensor

from rebinding.experiments.prompts import Prompts
from rebinding.task.designs import ModeName, Pair
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Again, moved, numbered, sized, sure, torn
from tests.oracles.by_hand.plain_model import Plain, Put

QUESTIONS = "swap_target_box_to_remaining_context_box"


@dataclass(frozen=True)
class Sides:
    """A pair as tokens: the answer's token, those of the other objects, and that of the counterfactual's answer."""

    own: Encoded
    other: Encoded
    answer: int
    rivals: tuple[int, ...]
    theirs: int | None

    def scores(self, logits: Tensor, size: float, prefix: str = "") -> dict[str, float | bool | None]:
        """What tracing tells of logits (vocabulary,), and of their size."""
        own = float(logits[self.answer])
        margin = own - max(float(logits[one]) for one in self.rivals)
        over = float("nan") if self.theirs is None else own - float(logits[self.theirs])
        # where the counterfactual has no answer of its own nothing is added to the candidates
        least = margin if self.theirs in (None, self.answer) else min(margin, over)
        found = {"hit": sure(margin, size), "hit_with_counterfactual": sure(least, size), "margin": margin}
        return {f"{prefix}{n}": v for n, v in (found | {"counterfactual_margin": over, "answer_logit": own}).items()}


def sides(prompts: Prompts, pair: Pair, rule: Any) -> Sides:
    """Objects are those in the boxes of the original at its end."""
    own, other = prompts.encoder.encode([pair.original, pair.counterfactual])
    held = [word for word in pair.original.story.state().values() if word is not None]
    answer = pair.original.answer
    rivals = tuple(prompts.encoder.answer_token(word, rule) for word in held if word != answer)
    said = pair.counterfactual.answer if pair.counterfactual.answerable else None
    theirs = None if said is None else prompts.encoder.answer_token(said, rule)
    return Sides(own, other, prompts.encoder.answer_token(answer, rule), rivals, theirs)


def patched(
    plain: Plain, given: Encoded, into: Encoded, places: Sequence[tuple[int, int]]
) -> tuple[Tensor, float, float]:
    """Logits (vocabulary,) with the residuals of one prompt in another at (layer, token), how far they were, and the
    scores of the layers after."""
    theirs, own = plain.clean(given.ids).values, plain.clean(into.ids).values
    new = {(layer, at): theirs["resid", layer][0, at] for layer, at in places}
    far = max(moved(value, own["resid", layer][0, at]) for (layer, at), value in new.items())
    puts = [Put("resid", layer, at, value) for (layer, at), value in new.items()]
    scores = plain.scores(into.ids, range(min(layer for layer, _ in places), len(plain.layers)))
    return plain.run([(into.ids, puts)]).logits[0], far, scores


def of_map(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """One cell of a map."""
    for index, row in numbered(rows):
        pair = prompts.plan(request.prompts).tracing(int(row["prompt"]), request.mode)
        yield _cell(plain, sides(prompts, pair, request.rule), index, [(int(row["layer"]), int(row["token"]))])


def of_mention(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """A label in the swap, or it and one in the context."""
    for index, row in numbered(rows):
        both = sides(prompts, prompts.plan(request.prompts).tracing(int(row["prompt"]), request.mode), request.rule)
        roles = {"swap": [request.swap], "both": [request.context, request.swap]}
        at = [both.own.roles[role] for role in roles[row["patched"]]]
        yield _cell(plain, both, index, [(int(row["layer"]), one) for one in at])


def _cell(plain: Plain, both: Sides, row: int, places: list[tuple[int, int]]) -> Again:
    base = plain.answer(both.other.ids)
    logits, far, scores = patched(plain, both.own, both.other, places)
    at = places[0][1]
    size = torn(sized(logits, base), scores)
    found = {**both.scores(logits, size), **both.scores(base, sized(base), "base_")}
    return Again(row, found | {"moved": far, "differs": both.own.ids[at] != both.other.ids[at]}, size)


def of_diagnostic(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """The counterfactual put into the original over a window of layers, asked about one of three boxes."""
    for index, row in numbered(rows):
        both = sides(prompts, _asking(prompts, request, row), request.rule)
        assert both.theirs is not None
        at = both.own.roles[row["place"]]
        places = [(layer, at) for layer in range(int(row["first"]), int(row["last"]) + 1)]
        logits, far, scores = patched(plain, both.other, both.own, places)
        base, elsewhere = plain.answer(both.own.ids), plain.answer(both.other.ids)
        size = torn(sized(logits, base, elsewhere), scores)

        def leads(logits: Tensor, token: int, both: Sides = both, size: float = size) -> bool | None:
            others = [one for one in (both.answer, *both.rivals) if one != token]
            return sure(float(logits[token] - max(logits[one] for one in others)), size)

        margin, before = (float(one[both.theirs] - one[both.answer]) for one in (logits, base))
        told: dict[str, float | bool | None] = {
            "margin": margin,
            "base_margin": before,
            "change": margin - before,
            "moved": far,
        }
        told |= {
            "hit": leads(logits, both.theirs),
            "original_correct": leads(base, both.answer),
            "counterfactual_correct": leads(elsewhere, both.theirs),
        }
        yield Again(index, told, size)


def _asking(prompts: Prompts, request: Any, row: Any) -> Pair:
    """The pair with the question of a row: the box that the original asks about, its partner, or another."""
    pair = prompts.plan(request.prompts).tracing(int(row["prompt"]), QUESTIONS)
    asked, partner = pair.original.question, pair.original.partner
    named = {"asked": asked, "partner": partner}
    if row["question"] in named:
        return pair.asking(str(named[row["question"]]))
    others = [box for box in pair.original.story.boxes if box not in (asked, partner)]
    return next(one for one in map(pair.asking, others) if one.changes_answer)


def of_answered(plain: Plain, prompts: Prompts, request: Any, rows: pd.DataFrame) -> Iterator[Again]:
    """Whether the original of a pair is answered correctly."""
    _, mode = request.prompts.pairing
    for index, row in numbered(rows):
        is_right, size = _is_right(plain, prompts, int(row["prompt"]), request, mode)
        yield Again(index, {"right": is_right}, size)


def right_ids(plain: Plain, prompts: Prompts, request: Any, candidates: Sequence[int]) -> list[int]:
    """The ids that a request is to trace: as many as it has, of those candidates whose original is answered
    correctly."""
    right = (number for number in candidates if _is_right(plain, prompts, number, request, request.mode)[0])
    return list(islice(right, request.n))


def _is_right(
    plain: Plain, prompts: Prompts, number: int, request: Any, mode: ModeName
) -> tuple[float | bool | None, float]:
    """Whether an original is answered correctly, if that hangs on more than rounding; and the size of its logits."""
    both = sides(prompts, prompts.plan(request.prompts).tracing(number, mode), request.rule)
    logits = plain.answer(both.own.ids)
    return both.scores(logits, sized(logits))["hit"], sized(logits)
