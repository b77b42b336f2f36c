"""Section 3 by hand: residuals of one prompt put into the run of another, one full forward a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd
from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.request import Answered, FirstMention, ReadoutDiagnostic, StoredState, TracingMap
from rebinding.task.designs import ModeName, Pair
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import Recomputation, Recompute, numbered, relative_difference, sized, sure, torn
from tests.reference.naive.edits import residuals
from tests.reference.naive.plain_model import Plain

QUESTIONS = "swap_target_box_to_remaining_context_box"


@dataclass(frozen=True)
class Sides:
    """A pair as tokens: the answer's token, those of the other objects, and that of the counterfactual's answer."""

    clean: Encoded
    counterfactual: Encoded
    answer: int
    rivals: tuple[int, ...]
    counterfactual_answer: int | None

    def scores(self, logits: Tensor, size: float, prefix: str = "") -> dict[str, float | bool | None]:
        """What tracing tells of logits (vocabulary,), and of their size."""
        answer_logit = float(logits[self.answer])
        margin = answer_logit - max(float(logits[rival]) for rival in self.rivals)
        counterfactual_margin = (
            float("nan")
            if self.counterfactual_answer is None
            else answer_logit - float(logits[self.counterfactual_answer])
        )
        # where the counterfactual has no answer of its own nothing is added to the candidates
        smallest = margin if self.counterfactual_answer in (None, self.answer) else min(margin, counterfactual_margin)
        values = {"hit": sure(margin, size), "hit_with_counterfactual": sure(smallest, size), "margin": margin}
        return {
            f"{prefix}{n}": v
            for n, v in (
                values | {"counterfactual_margin": counterfactual_margin, "answer_logit": answer_logit}
            ).items()
        }


def sides(prompts: Stories, pair: Pair, rule: Any) -> Sides:
    """Objects are those in the boxes of the original at its end."""
    clean, counterfactual = prompts.encoder.encode([pair.original, pair.counterfactual])
    objects = [word for word in pair.original.story.state().values() if word is not None]
    answer = pair.original.answer
    rivals = tuple(prompts.encoder.answer_token(word, rule) for word in objects if word != answer)
    counterfactual_word = pair.counterfactual.answer if pair.counterfactual.answerable else None
    counterfactual_answer = (
        None if counterfactual_word is None else prompts.encoder.answer_token(counterfactual_word, rule)
    )
    return Sides(clean, counterfactual, prompts.encoder.answer_token(answer, rule), rivals, counterfactual_answer)


def patched(
    plain: Plain, source: Encoded, target: Encoded, places: Sequence[tuple[int, int]]
) -> tuple[Tensor, float, float]:
    """Logits (vocabulary,) with the residuals of one prompt in another at (layer, token), how far they were, and the
    scores of the layers after."""
    puts, old = residuals(plain, source.ids, places), residuals(plain, target.ids, places)
    change = max(relative_difference(put.value, there.value) for put, there in zip(puts, old, strict=True))
    scores = plain.scores(target.ids, range(min(layer for layer, _ in places), len(plain.layers)))
    return plain.run([(target.ids, puts)]).logits[0], change, scores


def recompute_map(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """One cell of a map."""
    for index, row in numbered(rows):
        pair = prompts.plan(request.prompts).tracing(int(row["prompt"]), request.mode)
        yield _cell(plain, sides(prompts, pair, request.rule), index, [(int(row["layer"]), int(row["token"]))])


def recompute_mention(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """A label in the swap, or it and one in the context."""
    for index, row in numbered(rows):
        side_pair = sides(
            prompts, prompts.plan(request.prompts).tracing(int(row["prompt"]), request.mode), request.rule
        )
        roles = {"swap": [request.swap], "both": [request.context, request.swap]}
        at = [side_pair.clean.roles[role] for role in roles[row["patched"]]]
        yield _cell(plain, side_pair, index, [(int(row["layer"]), token) for token in at])


def _cell(plain: Plain, side_pair: Sides, row: int, places: list[tuple[int, int]]) -> Recomputation:
    base = plain.answer(side_pair.counterfactual.ids)
    logits, change, scores = patched(plain, side_pair.clean, side_pair.counterfactual, places)
    at = places[0][1]
    size = torn(sized(logits, base), scores)
    values = {**side_pair.scores(logits, size), **side_pair.scores(base, sized(base), "base_")}
    return Recomputation(
        row,
        values | {"relative_change": change, "differs": side_pair.clean.ids[at] != side_pair.counterfactual.ids[at]},
        size,
    )


def recompute_diagnostic(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """The counterfactual put into the original over a window of layers, asked about one of three boxes."""
    for index, row in numbered(rows):
        side_pair = sides(prompts, _diagnostic_pair(prompts, request, row), request.rule)
        assert side_pair.counterfactual_answer is not None
        at = side_pair.clean.roles[row["place"]]
        places = [(layer, at) for layer in range(int(row["first"]), int(row["last"]) + 1)]
        logits, change, scores = patched(plain, side_pair.counterfactual, side_pair.clean, places)
        base, counterfactual_logits = plain.answer(side_pair.clean.ids), plain.answer(side_pair.counterfactual.ids)
        size = torn(sized(logits, base, counterfactual_logits), scores)

        def leads(logits: Tensor, token: int, side_pair: Sides = side_pair, size: float = size) -> bool | None:
            rivals = [candidate for candidate in (side_pair.answer, *side_pair.rivals) if candidate != token]
            return sure(float(logits[token] - max(logits[candidate] for candidate in rivals)), size)

        margin, before = (
            float(values[side_pair.counterfactual_answer] - values[side_pair.answer]) for values in (logits, base)
        )
        row_values: dict[str, float | bool | None] = {
            "margin": margin,
            "base_margin": before,
            "change": margin - before,
            "relative_change": change,
        }
        row_values |= {
            "hit": leads(logits, side_pair.counterfactual_answer),
            "original_correct": leads(base, side_pair.answer),
            "counterfactual_correct": leads(counterfactual_logits, side_pair.counterfactual_answer),
        }
        yield Recomputation(index, row_values, size)


def _diagnostic_pair(prompts: Stories, request: Any, row: Any) -> Pair:
    """The pair with the question of a row: the box that the original asks about, its partner, or another."""
    pair = prompts.plan(request.prompts).tracing(int(row["prompt"]), QUESTIONS)
    query, partner = pair.original.question, pair.original.partner
    boxes = {"asked": query, "partner": partner}
    if row["question"] in boxes:
        return pair.with_query(str(boxes[row["question"]]))
    other_boxes = [box for box in pair.original.story.boxes if box not in (query, partner)]
    return next(pair_of_box for pair_of_box in map(pair.with_query, other_boxes) if pair_of_box.changes_answer)


def recompute_stored(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """All tokens of a part of the text, at every layer, from the prompt with other objects or with another swap."""
    design = prompts.plan(request.prompts)
    for index, row in numbered(rows):
        number, refilled = int(row["prompt"]), row["donor"] == "objects"
        pair = design.other_objects(number) if refilled else design.tracing(number, QUESTIONS)
        side_pair = sides(prompts, pair, request.rule)
        second, roles, pieces = side_pair.counterfactual_answer, side_pair.clean.roles, side_pair.clean.pieces
        assert second is not None
        label, last = roles["question_box"], roles["readout"]
        swap = next(at for at in range(roles["swap_first"], 0, -1) if "." in pieces[at - 1])
        tokens = range(swap, label) if row["span"] == "state" else range(label, last)
        places = [(layer, at) for layer in range(len(plain.layers)) for at in tokens]
        logits, change, scores = patched(plain, side_pair.counterfactual, side_pair.clean, places)
        base, other = plain.answer(side_pair.clean.ids), plain.answer(side_pair.counterfactual.ids)
        size = torn(sized(logits, base, other), scores)
        objects = {side_pair.answer, second, *side_pair.rivals}

        def says(logits: Tensor, token: int, objects: set[int] = objects, size: float = size) -> bool | None:
            return sure(float(logits[token] - max(logits[rival] for rival in objects - {token})), size)

        values: dict[str, float | bool | None] = {"own": says(logits, side_pair.answer), "second": says(logits, second)}
        values |= {"original_correct": says(base, side_pair.answer), "second_correct": says(other, second)}
        yield Recomputation(index, values | {"relative_change": change}, size)


def recompute_answered(plain: Plain, prompts: Stories, request: Any, rows: pd.DataFrame) -> Iterator[Recomputation]:
    """Whether the original of a pair is answered correctly."""
    _, mode = request.prompts.pairing
    for index, row in numbered(rows):
        is_right, size = _is_right(plain, prompts, int(row["prompt"]), request, mode)
        yield Recomputation(index, {"right": is_right}, size)


def right_ids(plain: Plain, prompts: Stories, request: Any, candidates: Sequence[int]) -> list[int]:
    """The ids that a request is to trace: as many as it has, of those candidates whose original is answered
    correctly."""
    right = (number for number in candidates if _is_right(plain, prompts, number, request, request.mode)[0])
    return list(islice(right, request.n))


def _is_right(
    plain: Plain, prompts: Stories, number: int, request: Any, mode: ModeName
) -> tuple[float | bool | None, float]:
    """Whether an original is answered correctly, if that hangs on more than rounding; and the size of its logits."""
    side_pair = sides(prompts, prompts.plan(request.prompts).tracing(number, mode), request.rule)
    logits = plain.answer(side_pair.clean.ids)
    return side_pair.scores(logits, sized(logits))["hit"], sized(logits)


BY_HAND: dict[type[Request], Recompute] = {
    Answered: recompute_answered,
    TracingMap: recompute_map,
    FirstMention: recompute_mention,
    ReadoutDiagnostic: recompute_diagnostic,
    StoredState: recompute_stored,
}
