"""The prompts of a search that is not told where to look."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.experiments.anywhere.pairs import Pairs, pairs_of
from rebinding.study.drawing import draw
from rebinding.world.designs import Design
from rebinding.world.prompts import Encoded, Encoder

NOISE = "independent"


def search_pairs(encoder: Encoder, drawn: Design, ids: Sequence[int]) -> Pairs:
    """Clean prompts of some ids and independent noise; of a counterbalanced design whole blocks are balanced."""
    found = draw(encoder, drawn, ids, ("noise", NOISE))
    return pairs_of(ids, found.prompts, found.others, [_objects(encoder, one) for one in found.prompts])


def _objects(encoder: Encoder, one: Encoded) -> tuple[int, ...]:
    """The answer tokens of a story's objects, the right one first."""
    answer = one.prompt.answer
    others = [word for word in one.prompt.story.objects if word != answer]
    return encoder.answer_tokens([answer, *others])
