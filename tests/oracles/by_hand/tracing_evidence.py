"""Section 3 by hand: residuals of one prompt put into the run of another, one full forward a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from rebinding.evidence import Request
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.request import Answered, FirstMention, ReadoutDiagnostic, StoredState, TracingMap
from rebinding.task.designs import ModeName, Pair
from rebinding.task.prompts import Encoded
from tests.oracles.by_hand.compare import EvidenceRow, Recompute, Values, relative_difference, sized, sure, torn
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
        answer_logit, second = float(logits[self.answer]), self.counterfactual_answer
        margin = answer_logit - max(float(logits[rival]) for rival in self.rivals)
        counterfactual_margin = float("nan") if second is None else answer_logit - float(logits[second])
        # where the counterfactual has no answer of its own nothing is added to the candidates
        smallest = margin if second in (None, self.answer) else min(margin, counterfactual_margin)
        values = {"hit": sure(margin, size), "hit_with_counterfactual": sure(smallest, size), "margin": margin}
        values |= {"counterfactual_margin": counterfactual_margin, "answer_logit": answer_logit}
        return {f"{prefix}{name}": value for name, value in values.items()}

    def leads(self, logits: Tensor, token: int, size: float) -> bool | None:
        """Whether an object leads over all others, of both prompts."""
        others = {self.answer, self.counterfactual_answer, *self.rivals} - {token, None}
        return sure(float(logits[token] - max(logits[other] for other in others)), size)


def sides(prompts: Stories, pair: Pair, rule: Any) -> Sides:
    """Objects are those in the boxes of the original at its end."""
    clean, counterfactual = prompts.encoder.encode([pair.original, pair.counterfactual])
    answer = pair.original.answer
    objects = [word for word in pair.original.story.state().values() if word not in (None, answer)]
    token, *rivals = (prompts.encoder.answer_token(str(word), rule) for word in (answer, *objects))
    second = prompts.encoder.answer_token(pair.counterfactual.answer, rule) if pair.counterfactual.answerable else None
    return Sides(clean, counterfactual, token, tuple(rivals), second)


def patched(
    plain: Plain, source: Encoded, target: Encoded, places: Sequence[tuple[int, int]]
) -> tuple[Tensor, float, float]:
    """Logits (vocabulary,) with the residuals of one prompt in another at (layer, token), how far they were, and the
    scores of the layers after."""
    puts, old = residuals(plain, source.ids, places), residuals(plain, target.ids, places)
    change = max(relative_difference(put.value, there.value) for put, there in zip(puts, old, strict=True))
    scores = plain.scores(target.ids, range(min(layer for layer, _ in places), len(plain.layers)))
    return plain.run([(target.ids, puts)]).logits[0], change, scores


def recompute_cell(row: EvidenceRow) -> tuple[Values, float]:
    """A cell of a map; or a label in the swap, or it and one in the context, at a layer."""
    plain, request = row.plain, row.request
    pair = sides(row.prompts, row.prompts.plan(request.prompts).tracing(int(row["prompt"]), request.mode), request.rule)
    if "patched" in row.evidence:
        roles = {"swap": [request.swap], "both": [request.context, request.swap]}
        tokens = [pair.clean.roles[role] for role in roles[row["patched"]]]
    else:
        tokens = [int(row["token"])]
    base = plain.answer(pair.counterfactual.ids)
    places = [(int(row["layer"]), token) for token in tokens]
    logits, change, scores = patched(plain, pair.clean, pair.counterfactual, places)
    size = torn(sized(logits, base), scores)
    differs = pair.clean.ids[tokens[0]] != pair.counterfactual.ids[tokens[0]]
    values = {**pair.scores(logits, size), **pair.scores(base, sized(base), "base_")}
    return values | {"relative_change": change, "differs": differs}, size


def recompute_diagnostic(row: EvidenceRow) -> tuple[Values, float]:
    """The counterfactual put into the original over a window of layers, asked about one of three boxes."""
    plain, pair = row.plain, sides(row.prompts, _diagnostic_pair(row), row.request.rule)
    second = pair.counterfactual_answer
    assert second is not None
    at = pair.clean.roles[row["place"]]
    places = [(layer, at) for layer in range(int(row["first"]), int(row["last"]) + 1)]
    logits, change, scores = patched(plain, pair.counterfactual, pair.clean, places)
    base, other = plain.answer(pair.clean.ids), plain.answer(pair.counterfactual.ids)
    size = torn(sized(logits, base, other), scores)
    margin, before = (float(values[second] - values[pair.answer]) for values in (logits, base))
    values = {"margin": margin, "base_margin": before, "change": margin - before, "relative_change": change}
    return values | {
        "hit": pair.leads(logits, second, size),
        "original_correct": pair.leads(base, pair.answer, size),
        "counterfactual_correct": pair.leads(other, second, size),
    }, size


def _diagnostic_pair(row: EvidenceRow) -> Pair:
    """The pair with the question of a row: the box that the original asks about, its partner, or another."""
    pair = row.prompts.plan(row.request.prompts).tracing(int(row["prompt"]), QUESTIONS)
    query, partner = pair.original.question, pair.original.partner
    boxes = {"asked": query, "partner": partner}
    if row["question"] in boxes:
        return pair.with_query(str(boxes[row["question"]]))
    other_boxes = [box for box in pair.original.story.boxes if box not in (query, partner)]
    return next(pair_of_box for pair_of_box in map(pair.with_query, other_boxes) if pair_of_box.changes_answer)


def recompute_stored(row: EvidenceRow) -> tuple[Values, float]:
    """All tokens of a part of the text, at every layer, from the prompt with other objects or with another swap."""
    plain, design, number = row.plain, row.prompts.plan(row.request.prompts), int(row["prompt"])
    refilled = row["donor"] == "objects"
    pair = sides(
        row.prompts, design.other_objects(number) if refilled else design.tracing(number, QUESTIONS), row.request.rule
    )
    second, roles, pieces = pair.counterfactual_answer, pair.clean.roles, pair.clean.pieces
    assert second is not None
    label, last = roles["question_box"], roles["readout"]
    swap = next(at for at in range(roles["swap_first"], 0, -1) if "." in pieces[at - 1])
    tokens = range(swap, label) if row["span"] == "state" else range(label, last)
    places = [(layer, at) for layer in range(len(plain.layers)) for at in tokens]
    logits, change, scores = patched(plain, pair.counterfactual, pair.clean, places)
    base, other = plain.answer(pair.clean.ids), plain.answer(pair.counterfactual.ids)
    size = torn(sized(logits, base, other), scores)
    return {
        "own": pair.leads(logits, pair.answer, size),
        "second": pair.leads(logits, second, size),
        "original_correct": pair.leads(base, pair.answer, size),
        "second_correct": pair.leads(other, second, size),
        "relative_change": change,
    }, size


def recompute_answered(row: EvidenceRow) -> tuple[Values, float]:
    """Whether the original of a pair is answered correctly."""
    _, mode = row.request.prompts.pairing
    is_right, size = _is_right(row.plain, row.prompts, int(row["prompt"]), row.request, mode)
    return {"right": is_right}, size


def right_ids(plain: Plain, prompts: Stories, request: Any, candidates: Sequence[int]) -> list[int]:
    """The ids that a request is to trace: as many as it has, of those candidates whose original is answered
    correctly."""
    right = (number for number in candidates if _is_right(plain, prompts, number, request, request.mode)[0])
    return list(islice(right, request.n))


def _is_right(
    plain: Plain, prompts: Stories, number: int, request: Any, mode: ModeName
) -> tuple[float | bool | None, float]:
    """Whether an original is answered correctly, if that hangs on more than rounding; and the size of its logits."""
    pair = sides(prompts, prompts.plan(request.prompts).tracing(number, mode), request.rule)
    logits = plain.answer(pair.clean.ids)
    return pair.scores(logits, sized(logits))["hit"], sized(logits)


BY_HAND: dict[type[Request], Recompute] = {
    Answered: recompute_answered,
    TracingMap: recompute_cell,
    FirstMention: recompute_cell,
    ReadoutDiagnostic: recompute_diagnostic,
    StoredState: recompute_stored,
}
